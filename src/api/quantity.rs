//! Kubernetes quantities, parsed exactly, and the integer amounts that quota is counted in.
//!
//! A [`Quantity`] is text like `500m`, `2Gi` or `1e3`. [`Exact`] is its value in units of 10⁻⁹.
//! [`Amount`] is the integer that quota is counted in: milli-CPU for `cpu`, units (bytes, devices)
//! for everything else, rounded up as in Kueue 0.19 (kueue `pkg/resources/requests.go`). Nothing
//! wraps: a value that does not fit is an error on parsing, and saturates in arithmetic.

use std::fmt;

pub use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Reason why a quantity is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text is not a quantity.
    #[error("{0:?} is not a quantity; write a number like 4, 500m, 1.5, 64Gi or 1e3")]
    Malformed(String),
    /// The quantity is negative where it must be zero or more.
    #[error("{0:?} is negative; only zero or more is allowed")]
    Negative(String),
    /// The quantity exceeds 2⁶³-1 units, the maximum in Kubernetes.
    #[error("{0:?} is too large; the largest quantity is 9223372036854775807")]
    TooLarge(String),
}

/// Nano-units per unit.
const NANO_PER_UNIT: i128 = 1_000_000_000;
/// Number of digits after the decimal point that are read exactly before rounding up to nano-units.
const FRACTION_DIGITS: usize = 18;
const FRACTION_SCALE: i128 = 1_000_000_000_000_000_000;

/// Value of a quantity, in nano-units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Exact(i128);

impl Exact {
    /// Parses a quantity in any notation. Digits below 10⁻⁹ are rounded away from zero.
    ///
    /// # Errors
    /// Returns an error if the text is not a quantity, or exceeds 2⁶³-1 units in magnitude.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let malformed = || QuantityError::Malformed(text.to_owned());
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
            return Err(malformed());
        }
        let multiplier = Multiplier::parse(suffix).ok_or_else(malformed)?;
        let nano = multiplier.to_nano(whole, fraction).ok_or_else(|| QuantityError::TooLarge(text.to_owned()))?;
        Ok(Self(if negative { -nano } else { nano }))
    }

    /// Parses a quantity that must be zero or more.
    ///
    /// # Errors
    /// As [`Exact::parse`], and if the value is negative.
    pub fn parse_non_negative(text: &str) -> Result<Self, QuantityError> {
        let value = Self::parse(text)?;
        if value.0 < 0 { Err(QuantityError::Negative(text.to_owned())) } else { Ok(value) }
    }

    /// Parses a requested quantity, which saturates at the maximum if it is too large. Not for
    /// quotas, which must be exact.
    ///
    /// # Errors
    /// Returns an error if the text is not a quantity, or is negative.
    pub fn parse_request(quantity: &Quantity) -> Result<Self, QuantityError> {
        match Self::parse_non_negative(&quantity.0) {
            Err(QuantityError::TooLarge(text)) if text.starts_with('-') => Err(QuantityError::Negative(text)),
            Err(QuantityError::TooLarge(_)) => Ok(Self(i128::from(i64::MAX) * NANO_PER_UNIT)),
            other => other,
        }
    }

    /// Zero.
    pub const ZERO: Self = Self(0);

    /// Returns the sum, saturating.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Converts to an amount of `resource`, rounded up and saturating.
    pub fn to_amount(self, resource: &str) -> Amount {
        Amount(self.div_ceil(if resource == "cpu" { NANO_PER_UNIT / 1000 } else { NANO_PER_UNIT }))
    }

    /// Returns the value in nano-units.
    pub fn nano(self) -> i128 {
        self.0
    }

    /// Returns the value in multiples of `step` nano-units, rounded up and saturating.
    fn div_ceil(self, step: i128) -> i64 {
        let steps = self.0.div_euclid(step) + i128::from(self.0.rem_euclid(step) != 0);
        i64::try_from(steps).unwrap_or(if steps < 0 { i64::MIN } else { i64::MAX })
    }
}

/// Multiplier that the suffix of a quantity stands for.
#[derive(Debug, Clone, Copy)]
enum Multiplier {
    /// This power of ten.
    Decimal(i64),
    /// This power of 1024.
    Binary(u32),
}

impl Multiplier {
    /// Parses a suffix. None if it is unknown.
    fn parse(suffix: &str) -> Option<Self> {
        Some(match suffix {
            "" => Self::Decimal(0),
            "n" => Self::Decimal(-9),
            "u" => Self::Decimal(-6),
            "m" => Self::Decimal(-3),
            "k" => Self::Decimal(3),
            "M" => Self::Decimal(6),
            "G" => Self::Decimal(9),
            "T" => Self::Decimal(12),
            "P" => Self::Decimal(15),
            "E" => Self::Decimal(18),
            "Ki" => Self::Binary(1),
            "Mi" => Self::Binary(2),
            "Gi" => Self::Binary(3),
            "Ti" => Self::Binary(4),
            "Pi" => Self::Binary(5),
            "Ei" => Self::Binary(6),
            _ => Self::Decimal(parse_exponent(suffix.strip_prefix(['e', 'E'])?)?),
        })
    }

    /// Returns the magnitude in nano-units, rounded up. None if it exceeds 2⁶³-1 units.
    fn to_nano(self, whole: &str, fraction: &str) -> Option<i128> {
        let (shift, factor) = match self {
            Self::Decimal(power) => (power, 1),
            Self::Binary(power) => (0, 1024_i128.pow(power)),
        };
        let (fine, inexact) = scale_decimal(whole, fraction, shift)?;
        let fine = fine.checked_mul(factor)?;
        let per_nano = FRACTION_SCALE / NANO_PER_UNIT;
        let nano = fine / per_nano + i128::from(inexact || fine % per_nano != 0);
        (nano <= i128::from(i64::MAX) * NANO_PER_UNIT).then_some(nano)
    }
}

/// Parses the exponent after `e` or `E`, clamped to ±10,000: beyond that a value is too large, or
/// rounds to the smallest one. None if it is malformed.
fn parse_exponent(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let magnitude = digits.parse::<i64>().unwrap_or(i64::MAX).min(10_000);
    Some(if text.starts_with('-') { -magnitude } else { magnitude })
}

/// Returns `whole.fraction × 10^shift` in units of 10⁻¹⁸, truncated, and whether nonzero digits
/// were dropped. None if it does not fit.
fn scale_decimal(whole: &str, fraction: &str, shift: i64) -> Option<(i128, bool)> {
    let point = i64::try_from(whole.len()).ok()? + shift + FRACTION_DIGITS as i64;
    let digits = whole.bytes().chain(fraction.bytes()).map(|b| i128::from(b - b'0'));
    let (mut value, mut inexact, mut read) = (0_i128, false, 0_i64);
    for digit in digits {
        if read < point {
            value = value.checked_mul(10)?.checked_add(digit)?;
        } else {
            inexact |= digit != 0;
        }
        read += 1;
    }
    // Zero stays zero for any shift. Any other value overflows i128 after at most 39 steps.
    while value != 0 && read < point {
        value = value.checked_mul(10)?;
        read += 1;
    }
    Some((value, inexact))
}

/// Integer amount of one resource, as quota is counted: milli-CPU for `cpu`, units (bytes, devices)
/// for all others. Arithmetic saturates at the limits of `i64`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(i64);

impl Amount {
    /// Zero.
    pub const ZERO: Self = Self(0);
    /// Maximum amount, which no quota can cover.
    pub const MAX: Self = Self(i64::MAX);

    /// Creates an amount of milli-CPU, bytes or devices.
    pub const fn new(units: i64) -> Self {
        Self(units)
    }

    /// Returns the amount in milli-CPU, bytes or devices.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// Converts a quantity to an amount of `resource`, rounded up and saturating.
    ///
    /// # Errors
    /// Returns an error if the text is not a quantity, or is negative.
    pub fn from_quantity(resource: &str, quantity: &Quantity) -> Result<Self, QuantityError> {
        Exact::parse_request(quantity).map(|exact| exact.to_amount(resource))
    }

    /// Returns the sum, saturating.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the difference, saturating. Negative if `other` is larger.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Returns the amount of `count` pods that need this amount each, saturating.
    #[must_use]
    pub const fn times(self, count: i64) -> Self {
        Self(self.0.saturating_mul(count))
    }

    /// Converts to a quantity, like `1500m`, `2Gi` or `8`.
    pub fn to_quantity(self, resource: &str) -> Quantity {
        Quantity(self.display(resource).to_string())
    }

    /// Formats the amount as a quantity, like `1500m`, `2Gi` or `8`.
    pub fn display(self, resource: &str) -> AmountDisplay<'_> {
        AmountDisplay { amount: self, resource }
    }
}

/// Formats an [`Amount`] as a quantity. Parsing the text returns the same amount.
#[derive(Debug, Clone, Copy)]
pub struct AmountDisplay<'a> {
    amount: Amount,
    resource: &'a str,
}

impl fmt::Display for AmountDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = self.amount.0;
        match self.resource {
            "cpu" if units % 1000 == 0 => write!(f, "{}", units / 1000),
            "cpu" => write!(f, "{units}m"),
            name if units != 0 && is_measured_in_bytes(name) => {
                let power = (units.trailing_zeros() / 10).min(6);
                let suffix = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][power as usize];
                write!(f, "{}{suffix}", units >> (10 * power))
            }
            _ => write!(f, "{units}"),
        }
    }
}

/// Returns whether a resource is measured in bytes, and so formatted in powers of 1024.
fn is_measured_in_bytes(resource: &str) -> bool {
    matches!(resource, "memory" | "storage" | "ephemeral-storage") || resource.starts_with("hugepages-")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn quantity(text: &str) -> Quantity {
        Quantity(text.to_owned())
    }

    #[rstest]
    #[case("0", 0)]
    #[case("1", 1_000_000_000)]
    #[case("+1.5", 1_500_000_000)]
    #[case("-2", -2_000_000_000)]
    #[case(".5", 500_000_000)]
    #[case("5.", 5_000_000_000)]
    #[case("1n", 1)]
    #[case("1u", 1_000)]
    #[case("100m", 100_000_000)]
    #[case("2k", 2_000_000_000_000)]
    #[case("1Ki", 1_024_000_000_000)]
    #[case("1.5Gi", 1_610_612_736_000_000_000)]
    #[case("1e3", 1_000_000_000_000)]
    #[case("1E3", 1_000_000_000_000)]
    #[case("15e-1", 1_500_000_000)]
    #[case("0.1n", 1)]
    #[case("0e400", 0)]
    #[case("1e-400", 1)]
    #[case("000000000000000000000000000000000000000000000000001", 1_000_000_000)]
    #[case("1000000000000000000000000000000e-30", 1_000_000_000)]
    #[case("9223372036854775807", 9_223_372_036_854_775_807_000_000_000)]
    fn every_notation_is_parsed_exactly(#[case] text: &str, #[case] nano: i128) {
        assert_eq!(Exact::parse(text).map(Exact::nano), Ok(nano));
    }

    #[rstest]
    #[case("")]
    #[case("-")]
    #[case(".")]
    #[case("1.2.3")]
    #[case("1ki")]
    #[case("Gi")]
    #[case("1e")]
    #[case("1e+")]
    #[case("1e1.5")]
    #[case("one")]
    #[case("1 Gi")]
    #[case("١")]
    fn malformed_quantity_is_rejected(#[case] text: &str) {
        assert_eq!(Exact::parse(text), Err(QuantityError::Malformed(text.to_owned())));
    }

    #[rstest]
    #[case("1e400")]
    #[case("8Ei")]
    #[case("9223372036854775808")]
    #[case("1e99999999999999999999")]
    #[case("99999999999999999999999999999999999999999999999")]
    fn quantity_beyond_the_maximum_is_too_large_and_its_amount_saturates(#[case] text: &str) {
        assert_eq!(Exact::parse(text), Err(QuantityError::TooLarge(text.to_owned())));
        assert_eq!(Amount::from_quantity("memory", &quantity(text)), Ok(Amount::MAX));
    }

    #[rstest]
    #[case("-1")]
    #[case("-1e400")]
    #[case("-1n")]
    fn negative_quantity_has_no_amount(#[case] text: &str) {
        assert_eq!(Amount::from_quantity("cpu", &quantity(text)), Err(QuantityError::Negative(text.to_owned())));
    }

    #[rstest]
    #[case::whole_cores("cpu", "2", 2000, "2")]
    #[case::milli("cpu", "1500m", 1500, "1500m")]
    #[case::cpu_rounds_up("cpu", "100u", 1, "1m")]
    #[case::memory("memory", "2147483648", 2_147_483_648, "2Gi")]
    #[case::memory_in_the_largest_even_unit("memory", "1.5Gi", 1_610_612_736, "1536Mi")]
    #[case::odd_bytes("memory", "1500000001", 1_500_000_001, "1500000001")]
    #[case::units_round_up("memory", "1m", 1, "1")]
    #[case::devices("nvidia.com/gpu", "1024", 1024, "1024")]
    #[case::huge_cpu_stays_at_the_limit("cpu", "9E", i64::MAX, "9223372036854775807m")]
    #[case::zero("memory", "0", 0, "0")]
    fn amounts_use_the_unit_of_their_resource(
        #[case] resource: &str,
        #[case] text: &str,
        #[case] units: i64,
        #[case] shown: &str,
    ) {
        let amount = Amount::from_quantity(resource, &quantity(text));
        assert_eq!(amount, Ok(Amount::new(units)));
        assert_eq!(Amount::new(units).display(resource).to_string(), shown);
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "\\PC*") {
            let _ = Exact::parse(&text);
        }

        #[test]
        fn parsing_number_like_text_never_panics(text in "[+-]?[0-9]{0,50}\\.?[0-9]{0,50}([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{0,30})?") {
            let _ = Exact::parse(&text);
        }

        #[test]
        fn integers_keep_their_value(value in any::<i64>()) {
            prop_assume!(value != i64::MIN);
            prop_assert_eq!(Exact::parse(&value.to_string()).map(Exact::nano), Ok(i128::from(value) * NANO_PER_UNIT));
        }

        #[test]
        fn displayed_amount_parses_to_the_same_amount(units in 0..=i64::MAX, resource in "cpu|memory|nvidia.com/gpu") {
            let amount = Amount::new(units);
            prop_assert_eq!(Amount::from_quantity(&resource, &amount.to_quantity(&resource)), Ok(amount));
        }

        #[test]
        fn a_fraction_rounds_up_by_less_than_one(milli in 0..=1_000_000_000_i64) {
            let amount = Amount::from_quantity("memory", &quantity(&format!("{milli}m")));
            prop_assert_eq!(amount, Ok(Amount::new((milli + 999) / 1000)));
        }

        #[test]
        fn arithmetic_never_wraps(a in any::<i64>(), b in any::<i64>()) {
            let (x, y) = (Amount::new(a), Amount::new(b));
            prop_assert_eq!(i128::from(x.plus(y).get()), (i128::from(a) + i128::from(b)).clamp(i64::MIN.into(), i64::MAX.into()));
            prop_assert_eq!(i128::from(x.times(b).get()), (i128::from(a) * i128::from(b)).clamp(i64::MIN.into(), i64::MAX.into()));
        }
    }
}
