"""A person's own pages: what they were told, and what is to reach them how.

`listed` shows the notifications of the organization one works in, `choosing` the choices; both hand what people do
to `notifications.services`. Nobody sees another's."""
