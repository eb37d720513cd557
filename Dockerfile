# A student's machine in a container: the course, and the packages that requirements.lock pins. It has not been built where it was written.
#
#   docker build -t labs . && docker run --rm -it -p 8888:8888 -v "$PWD":/labs labs
FROM python:3.12-slim
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN apt-get update && apt-get install -y --no-install-recommends git make && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home student && install -d -o student /opt/labs /labs
USER student
WORKDIR /labs
COPY --chown=student . .
# Outside of the folder, which a mount hides. It installs the course as it lies in /labs, so edits count at once.
ENV VENV=/opt/labs/venv PATH=/opt/labs/venv/bin:$PATH
RUN TORCH_INDEX_URL=$TORCH_INDEX_URL make setup
EXPOSE 8888
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--no-browser"]
