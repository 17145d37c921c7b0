//! The geometry of one of the stacked charts, which share a time axis.

use std::ops::Range;

use plotters::coord::ranged1d::Ranged;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::RGBColor;
use plotters::style::text_anchor::HPos;

use super::canvas::{Canvas, LabelStyle, Point};
use super::{FAINT, GRID, INK, LEFT, PAPER, RIGHT, SMALL};

/// Approximate width of a letter of the subtitle, in pixels.
const WIDE: i32 = 12;

/// Position and axes of a chart.
pub struct Panel {
    /// Pixels from the top of the picture.
    pub top: i32,
    pub bottom: i32,
    /// Seconds from left to right.
    pub seconds: Range<f64>,
    /// Values from bottom to top.
    pub values: Range<f64>,
}

/// Step function: values from a second on, until the next entry.
pub type StepFunction = Vec<(f64, f64)>;

impl Panel {
    /// Returns the x coordinate of a second.
    pub fn x(&self, second: f64) -> i32 {
        RangedCoordf64::from(self.seconds.clone()).map(&second, (LEFT, RIGHT))
    }

    /// Returns the y coordinate of a value.
    pub fn y(&self, value: f64) -> i32 {
        RangedCoordf64::from(self.values.clone()).map(&value, (self.bottom, self.top))
    }

    /// Draws the title and the subtitle next to it, legible where lines cross them.
    pub fn title(&self, canvas: &Canvas<'_>, title: &str, aside: &str) {
        let y = self.top - 26;
        let width = WIDE * i32::try_from(aside.chars().count()).unwrap_or(0);
        canvas.block((RIGHT - width, y - 15), (RIGHT, y + 15), PAPER, 0.9);
        canvas.write(title, (LEFT, y), LabelStyle { size: SMALL, color: INK, bold: true, from: HPos::Left });
        canvas.write(aside, (RIGHT, y), LabelStyle { size: SMALL - 3, color: FAINT, bold: false, from: HPos::Right });
    }

    /// Draws a grid line for each of these values.
    pub fn grid(&self, canvas: &Canvas<'_>, ticks: &[(f64, String)]) {
        for (value, label) in ticks {
            let y = self.y(*value);
            canvas.line(vec![(LEFT, y), (RIGHT, y)], GRID, 1.0, 2);
            let words = LabelStyle { size: SMALL - 3, color: FAINT, bold: false, from: HPos::Right };
            canvas.write(label, (LEFT - 16, y), words);
        }
    }

    /// Returns the points of a step function.
    pub fn stairs(&self, steps: &[(f64, f64)]) -> Vec<Point> {
        let mut points: Vec<Point> = Vec::new();
        for (second, value) in steps {
            let at = (self.x(*second), self.y(*value));
            if let Some(before) = points.last().map(|before| before.1) {
                points.push((at.0, before));
            }
            points.push(at);
        }
        points.extend(points.last().map(|last| (RIGHT, last.1)));
        points
    }

    /// Returns the points of a sampled value.
    pub fn curve(&self, values: &[(f64, f64)]) -> Vec<Point> {
        values.iter().map(|(second, value)| (self.x(*second), self.y(*value))).collect()
    }

    /// Fills the area between two lines.
    pub fn between(&self, canvas: &Canvas<'_>, mut upper: Vec<Point>, lower: &[Point], color: RGBColor) {
        upper.extend(lower.iter().rev());
        canvas.area(upper, color, 1.0);
    }

    /// Draws labels at the right end of lines, moved apart so that none overlap.
    pub fn ends(&self, canvas: &Canvas<'_>, labels: &[(f64, String, RGBColor)]) {
        let mut labels: Vec<(i32, &String, RGBColor)> =
            labels.iter().map(|(value, label, color)| (self.y(*value), label, *color)).collect();
        labels.sort_by_key(|label| label.0);
        for (y, label) in apart(labels.iter().map(|label| label.0)).into_iter().zip(&labels) {
            canvas.write(
                label.1,
                (RIGHT + 14, y),
                LabelStyle { size: SMALL - 1, color: label.2, bold: true, from: HPos::Left },
            );
        }
    }
}

/// Moves sorted heights down until each two are at least one line of text apart.
fn apart(heights: impl Iterator<Item = i32>) -> Vec<i32> {
    let mut placed: Vec<i32> = Vec::new();
    for height in heights {
        let least = placed.last().map_or(i32::MIN, |last| last + 28);
        placed.push(height.max(least));
    }
    placed
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn panel() -> Panel {
        Panel { top: 100, bottom: 200, seconds: 0.0..10.0, values: 0.0..100.0 }
    }

    #[test]
    fn step_function_keeps_its_value_until_it_changes() {
        let points = panel().stairs(&[(0.0, 0.0), (5.0, 100.0)]);
        let middle = i32::midpoint(LEFT, RIGHT);
        assert_eq!(points, [(LEFT, 200), (middle, 200), (middle, 100), (RIGHT, 100)]);
    }

    #[test]
    fn empty_series_has_no_points() {
        assert_eq!(panel().stairs(&[]), []);
    }

    #[rstest]
    #[case::far(&[100, 150, 200], &[100, 150, 200])]
    #[case::near(&[100, 105, 200], &[100, 128, 200])]
    #[case::all_at_once(&[100, 100, 100], &[100, 128, 156])]
    fn labels_do_not_overlap(#[case] wanted: &[i32], #[case] placed: &[i32]) {
        assert_eq!(apart(wanted.iter().copied()), placed);
    }
}
