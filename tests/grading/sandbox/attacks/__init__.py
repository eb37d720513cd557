"""A package as a student hands it in, but every function is an attack. The tests beside this folder run them."""
