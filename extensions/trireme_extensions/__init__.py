"""What comes in by the doors of ``sm``. The README above says what each folder brings."""
