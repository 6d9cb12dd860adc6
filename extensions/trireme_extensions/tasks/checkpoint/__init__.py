"""Read the files of a folder of Hugging Face's form: what each field means for the model's task."""
