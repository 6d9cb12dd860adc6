"""Scripts import this name but call nothing of it: the box imports modules itself."""
