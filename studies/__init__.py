"""What labkit's own claims rest on: programs that measure its tools, each run by hand, and the records that they make.

A study imports labkit, and nothing imports a study: no tool needs one, and a laptop without them lacks nothing. They
stay with the course; students get what they found, in the pages that `lab results` fills in.

    verdict/     how often the comparison's verdict is wrong        results/DATE-verdict-study.json
    alarms/      how often a run's alarms ring rightly              results/DATE-alarms.json
    guide/       what the planner answers, hundreds of times        PARALLELISM_GUIDE.md
    interrupted.py  a training that is paused and killed            capstone/results/, results/
    parameters.py   what FP8 parameters save: memory, bytes, speed  week16_fp8/results/
"""
