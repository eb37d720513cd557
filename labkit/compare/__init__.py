"""The renter's comparison: is FP8 worth it on this machine, and is the loss the same?

Here belong arms, plans, budgets, verdicts, and the tables, pictures and pages that tell them. What a run folder is, and
how it is read, is labkit.record's; how an arm is trained, labkit.train's.
"""
