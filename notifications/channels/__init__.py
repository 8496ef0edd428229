"""Send notifications by voice call, text, chat and push."""
