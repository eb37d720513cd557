"""The renter's comparison: is FP8 worth it on this machine, and is the loss the same?"""
