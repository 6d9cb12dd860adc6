"""The reference design that this box is measured against."""
