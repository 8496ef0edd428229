"""Name the enums of the API's schema, so that generated clients have readable names."""

from __future__ import annotations

ENUM_NAMES = {
    "JobStatus": "dispatch.jobs.models.Job.Status",
    "SubmissionStatus": "dispatch.jobs.models.Submission.Status",
    "EndpointState": "dispatch.outbox.rules.health.STATES",
    "PortalLinkState": "dispatch.outbox.services.portal.STATES",
    "MessageStatus": "dispatch.outbox.models.Status",
    "ScheduleStatus": "dispatch.schedules.models.Schedule.Status",
    "RunStatus": "dispatch.schedules.models.RunStatus",
    "BulkStatus": "dispatch.schedules.models.BulkImport.Status",
    "NotificationLevel": "notifications.models.Level",
    "EventKind": "notifications.rules.KIND_CHOICES",
    "PoolKind": "dispatch.capacity.models.DispatchPool.Kind",
    "AlertStatus": "notifications.models.Alert.Status",
    "DeliveryStatus": "notifications.models.Delivery.Status",
    "LeadStatus": "dispatch.leads.models.campaigns.Lead.Status",
    "LeadOutcome": "dispatch.leads.models.campaigns.Lead.Outcome",
    "MessageMode": "dispatch.outbox.models.Mode",
    "LeadMode": "dispatch.leads.models.campaigns.LeadDispatch.Mode",
    "RetriedOutcome": "dispatch.leads.models.calling_rules.RETRIED_CHOICES",
    "Language": "accounts.models.Organization.Language",
    "VoiceName": "dispatch.core.voices.voice_choices",
    "AlertChannelKind": "notifications.models.channels.AlertChannel.Kind",
    "AlertChannelAudience": "notifications.models.channels.AlertChannel.Audience",
    "EscalationAudience": "notifications.models.preferences.EscalationStep.Audience",
    "CallStatus": "dispatch.telephony.models.Call.Status",
}
