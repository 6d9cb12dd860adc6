"""``sm inspect``: shows what a model repository holds, as text, JSON or a Mermaid flowchart."""
