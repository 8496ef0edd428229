"""The outbox's transactions: the only place where its state changes.

`intake` takes messages in, `claims` decides who goes next, `starting` and `finishing` frame one call, `recovery`
takes back what got stuck, `by_hand` is what people do, `targets` keeps the health of who is called."""
