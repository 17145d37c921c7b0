//! Drawing primitives: lines, areas and text, in pixels.

use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::prelude::{
    Color, DrawingArea, IntoDrawingArea, PathElement, Polygon, RGBColor, Rectangle, ShapeStyle, Text,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, IntoFont, TextStyle};

/// Fonts of similar width; the first one is used for the PNG.
pub const FONTS: &str = "Roboto, Helvetica, Arial, sans-serif";
/// Factor by which plotters scales down font sizes in an SVG.
const FONT_SCALE: f64 = 1.24;
/// Length of a dash, and of the gap after it.
const DASH: f64 = 10.0;

/// A point of the picture, in pixels.
pub type Point = (i32, i32);

/// A picture under construction.
pub struct Canvas<'a>(DrawingArea<SVGBackend<'a>, Shift>);

/// Style of a text.
#[derive(Clone, Copy)]
pub struct LabelStyle {
    pub size: u32,
    pub color: RGBColor,
    pub bold: bool,
    /// Horizontal anchor.
    pub from: HPos,
}

impl<'a> Canvas<'a> {
    /// Returns an empty picture of this size, drawn into the string as an SVG.
    pub fn new(svg: &'a mut String, size: (u32, u32), color: RGBColor) -> Self {
        let root = SVGBackend::with_string(svg, size).into_drawing_area();
        root.fill(&color).expect("writing to a string succeeds");
        Self(root)
    }

    /// Draws a line through these points.
    pub fn line(&self, points: Vec<Point>, color: RGBColor, opacity: f64, width: u32) {
        let style = ShapeStyle { color: color.mix(opacity), filled: false, stroke_width: width };
        self.0.draw(&PathElement::new(points, style)).expect("writing to a string succeeds");
    }

    /// Draws a dashed line through these points.
    pub fn dashes(&self, points: &[Point], color: RGBColor, width: u32) {
        for pair in points.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let length = f64::from(from.0.abs_diff(to.0)).hypot(f64::from(from.1.abs_diff(to.1)));
            let at = |along: f64| {
                let part = (along / length).min(1.0);
                (between(from.0, to.0, part), between(from.1, to.1, part))
            };
            let mut along = 0.0;
            while along < length {
                self.line(vec![at(along), at(along + DASH)], color, 1.0, width);
                along += 2.0 * DASH;
            }
        }
    }

    /// Draws a filled polygon.
    pub fn area(&self, points: Vec<Point>, color: RGBColor, opacity: f64) {
        self.0.draw(&Polygon::new(points, color.mix(opacity).filled())).expect("writing to a string succeeds");
    }

    /// Draws a filled rectangle.
    pub fn block(&self, corner: Point, opposite: Point, color: RGBColor, opacity: f64) {
        let block = Rectangle::new([corner, opposite], color.mix(opacity).filled());
        self.0.draw(&block).expect("writing to a string succeeds");
    }

    /// Draws a text at a point.
    pub fn write(&self, text: &str, at: Point, words: LabelStyle) {
        let style = if words.bold { FontStyle::Bold } else { FontStyle::Normal };
        let font = (FONTS, f64::from(words.size) * FONT_SCALE, style).into_font();
        let style = TextStyle::from(font).color(&words.color).pos(Pos::new(words.from, VPos::Center));
        self.0.draw(&Text::new(text.to_owned(), at, style)).expect("writing to a string succeeds");
    }
}

fn between(from: i32, to: i32, part: f64) -> i32 {
    from + (f64::from(to - from) * part).round() as i32
}
