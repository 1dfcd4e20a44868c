"""Text for people: numbers and tables, written the same way in the terminal, in Markdown and in HTML."""
