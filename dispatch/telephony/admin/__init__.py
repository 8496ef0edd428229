"""Provide the admin pages of telephony."""

from dispatch.telephony.admin import accounts, calls, numbers, sms, spending, voice_preview

__all__ = ["accounts", "calls", "numbers", "sms", "spending", "voice_preview"]
