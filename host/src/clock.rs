//! The wall clock, for what people read: condition times, the explain log and the guest's `clock.now`.

/// The time.
pub fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// The time as RFC 3339 in UTC with whole seconds, as Kubernetes writes it.
pub fn wall() -> String {
    now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
