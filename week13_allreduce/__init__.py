"""Week 13, all-reduce: one ring, eight lines, three clocks. Start with README.md, then lab.ipynb."""
