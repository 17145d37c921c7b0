//! What a picture is drawn with: lines, areas and words, in pixels.

use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::prelude::{
    Color, DrawingArea, IntoDrawingArea, PathElement, Polygon, RGBColor, Rectangle, ShapeStyle, Text,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, IntoFont, TextStyle};

/// Fonts that are about equally wide; the first one is that of the PNG.
pub const FONTS: &str = "Roboto, Helvetica, Arial, sans-serif";
/// A font that is asked for in plotters comes out so much smaller in an SVG.
const FONT_SCALE: f64 = 1.24;
/// Length of a dash, and of what is left out after it.
const DASH: f64 = 10.0;

/// A place on the picture.
pub type Point = (i32, i32);

/// A picture that is being drawn.
pub struct Canvas<'a>(DrawingArea<SVGBackend<'a>, Shift>);

/// How words look.
#[derive(Clone, Copy)]
pub struct Words {
    pub size: u32,
    pub colour: RGBColor,
    pub bold: bool,
    /// Where they are, seen from the point that they are written at.
    pub from: HPos,
}

impl<'a> Canvas<'a> {
    /// An empty picture of this size, whose text becomes that of an SVG.
    pub fn new(svg: &'a mut String, size: (u32, u32), colour: RGBColor) -> Self {
        let root = SVGBackend::with_string(svg, size).into_drawing_area();
        root.fill(&colour).expect("a string takes it all");
        Self(root)
    }

    /// A line through these points.
    pub fn line(&self, points: Vec<Point>, colour: RGBColor, opacity: f64, width: u32) {
        let style = ShapeStyle { color: colour.mix(opacity), filled: false, stroke_width: width };
        self.0.draw(&PathElement::new(points, style)).expect("a string takes it all");
    }

    /// A line through these points, in dashes.
    pub fn dashes(&self, points: &[Point], colour: RGBColor, width: u32) {
        for pair in points.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let length = f64::from(from.0.abs_diff(to.0)).hypot(f64::from(from.1.abs_diff(to.1)));
            let at = |along: f64| {
                let part = (along / length).min(1.0);
                (between(from.0, to.0, part), between(from.1, to.1, part))
            };
            let mut along = 0.0;
            while along < length {
                self.line(vec![at(along), at(along + DASH)], colour, 1.0, width);
                along += 2.0 * DASH;
            }
        }
    }

    /// What these points surround, filled.
    pub fn area(&self, points: Vec<Point>, colour: RGBColor, opacity: f64) {
        self.0.draw(&Polygon::new(points, colour.mix(opacity).filled())).expect("a string takes it all");
    }

    /// A rectangle, filled.
    pub fn block(&self, corner: Point, opposite: Point, colour: RGBColor, opacity: f64) {
        let block = Rectangle::new([corner, opposite], colour.mix(opacity).filled());
        self.0.draw(&block).expect("a string takes it all");
    }

    /// Words beside a point.
    pub fn write(&self, text: &str, at: Point, words: Words) {
        let style = if words.bold { FontStyle::Bold } else { FontStyle::Normal };
        let font = (FONTS, f64::from(words.size) * FONT_SCALE, style).into_font();
        let style = TextStyle::from(font).color(&words.colour).pos(Pos::new(words.from, VPos::Center));
        self.0.draw(&Text::new(text.to_owned(), at, style)).expect("a string takes it all");
    }
}

#[allow(clippy::cast_possible_truncation, reason = "a pixel of the picture")]
fn between(from: i32, to: i32, part: f64) -> i32 {
    from + (f64::from(to - from) * part).round() as i32
}
