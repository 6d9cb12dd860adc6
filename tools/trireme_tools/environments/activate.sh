# For bash: `source bin/activate`, from wherever this folder is.
environment="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
unset PYTHONHOME PYTHONPATH
export PYTHONNOUSERSITE=1
export PATH="$environment/bin:$environment/local/bin:$PATH"
unset environment
