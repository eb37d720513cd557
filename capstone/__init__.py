"""The capstone: one FP8 trainer out of the four weeks' parts, on any mesh. Start with README.md."""
