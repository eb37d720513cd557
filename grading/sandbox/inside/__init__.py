"""What runs inside the sandbox: the one that imports torch and forks ranks (zygote), what shuts a rank in (jail), and
the rank itself. Nothing here knows an expected value, a seed or another submission."""
