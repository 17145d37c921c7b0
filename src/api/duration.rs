//! Durations in Go's notation, as in Kueue's configuration and in annotations: `1h30m`, `1.5h`,
//! `300ms`, `0`.
//!
//! `kube::core::Duration` is not used, because it parses through f64 and accepts `+-+5s`.

use jiff::SignedDuration;

/// Parses a duration as Go 1.26's `time.ParseDuration` does: the sum of numbers with units from
/// `ns` to `h`. None if it is malformed, or exceeds Go's maximum of 292 years.
pub fn parse(text: &str) -> Option<SignedDuration> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(SignedDuration::ZERO);
    }
    let mut nanos = 0_i128;
    loop {
        let (part, after) = parse_component(rest)?;
        nanos = nanos.checked_add(part)?;
        if after.is_empty() {
            break;
        }
        rest = after;
    }
    let nanos = i64::try_from(if negative { -nanos } else { nanos }).ok()?;
    Some(SignedDuration::from_nanos(nanos))
}

/// Parses the first number with its unit. Returns it in nanoseconds, with the rest of the text.
fn parse_component(text: &str) -> Option<(i128, &str)> {
    let (number, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    let (unit, rest) = rest.split_at(rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len()));
    let unit: i128 = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // Digits after the 18th are less than a nanosecond in any unit.
    let fraction = fraction.get(..18).unwrap_or(fraction);
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let amount = parse_digits(whole)?.checked_mul(unit)?;
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    Some((amount.checked_add(parse_digits(fraction)?.checked_mul(unit)? / scale)?, rest))
}

/// Parses decimal digits. Empty text is zero.
fn parse_digits(text: &str) -> Option<i128> {
    if text.is_empty() {
        return Some(0);
    }
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("0", Some(0))]
    #[case("0s", Some(0))]
    #[case("5m", Some(300_000))]
    #[case("1h30m", Some(5_400_000))]
    #[case("0h30m", Some(1_800_000))]
    #[case("1.5h", Some(5_400_000))]
    #[case(".5s", Some(500))]
    #[case("-2s", Some(-2_000))]
    #[case("300ms", Some(300))]
    #[case("", None)]
    #[case("-", None)]
    #[case("5", None)]
    #[case("5 m", None)]
    #[case("1d", None)]
    #[case("1.2.3s", None)]
    #[case(".s", None)]
    #[case("5m3", None)]
    #[case("9999999999h", None)]
    fn durations_are_parsed_as_by_go(#[case] text: &str, #[case] millis: Option<i64>) {
        assert_eq!(parse(text), millis.map(SignedDuration::from_millis));
    }
}
