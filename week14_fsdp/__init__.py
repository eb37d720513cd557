"""Week 14, FSDP: from data parallel to a sharded trainer of your own. Start with README.md, then lab.ipynb."""
