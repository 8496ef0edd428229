"""What each choice of words is called in the API's schema, so that clients made from it have names to read."""

from __future__ import annotations

ENUM_NAMES = {
    "JobStatus": "dispatch.jobs.models.Job.Status",
    "SubmissionStatus": "dispatch.jobs.models.Submission.Status",
    "MessageStatus": "dispatch.outbox.models.Status",
    "ScheduleStatus": "dispatch.schedules.models.Schedule.Status",
    "RunStatus": "dispatch.schedules.models.RunStatus",
    "BulkStatus": "dispatch.schedules.models.BulkImport.Status",
    "NotificationLevel": "notifications.models.Level",
    "EventKind": "notifications.rules.KIND_CHOICES",
    "PoolKind": "dispatch.capacity.models.DispatchPool.Kind",
    "AlertStatus": "notifications.models.Alert.Status",
    "DeliveryStatus": "notifications.models.Delivery.Status",
    "LeadStatus": "dispatch.leads.models.leads.Lead.Status",
    "LeadOutcome": "dispatch.leads.models.leads.Lead.Outcome",
    "MessageMode": "dispatch.outbox.models.Mode",
    "LeadMode": "dispatch.leads.models.leads.LeadDispatch.Mode",
    "RetriedOutcome": "dispatch.leads.models.rulebook.RETRIED_CHOICES",
    "CallStatus": "dispatch.telephony.models.Call.Status",
}
