"""What this machine has, and how fast its parts are."""
