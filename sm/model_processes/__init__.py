"""The processes of Python models: who may answer, what is in doubt or dead, what is out and comes back."""
