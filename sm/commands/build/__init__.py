"""What happens before the box starts: packages fetched, models built, a Triton repository assembled."""
