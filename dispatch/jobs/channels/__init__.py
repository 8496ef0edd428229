"""Reach technicians by offer calls and texts, and answer their texts and call-backs."""
