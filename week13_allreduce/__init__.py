"""Week 13, all-reduce: one ring, three clocks. Start with README.md, then lab.ipynb."""
