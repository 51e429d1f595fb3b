//! The wall clock, for what people read: condition times and the guest's `clock.now`.

/// The time as RFC 3339 in UTC with whole seconds, as Kubernetes writes it.
pub fn wall() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
