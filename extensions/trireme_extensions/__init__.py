"""Extensions of ``sm``, which come in by its doors. The README above says what each folder brings."""
