//! What is shown while it runs: lines of what happens, and below them, in a terminal, how it stands.

mod view;

use std::cell::RefCell;
use std::io::{IsTerminal, Stdout, stdout};

use ratatui::backend::CrosstermBackend;
use ratatui::text::Text;
use ratatui::widgets::{Paragraph, Widget};
use ratatui::{Terminal, TerminalOptions, Viewport};

pub use view::Moment;

/// Where the demo is shown. What it drew in a terminal stays there when this value ends.
pub struct Screen(RefCell<Kind>);

enum Kind {
    /// Lines only: a file or a pipe, or a terminal that can't tell where its cursor is. Until which second it has been told.
    Lines(usize),
    Terminal(Terminal<CrosstermBackend<Stdout>>),
}

impl Screen {
    /// The standard output.
    pub fn new() -> Self {
        let inline = || {
            let options = TerminalOptions { viewport: Viewport::Inline(view::HEIGHT) };
            Terminal::with_options(CrosstermBackend::new(stdout()), options).ok()
        };
        let terminal = stdout().is_terminal().then(inline).flatten();
        Self(RefCell::new(terminal.map_or(Kind::Lines(0), Kind::Terminal)))
    }

    /// Says what comes next.
    pub fn title(&self, text: &str) {
        self.line(&format!("\n{text}"));
    }

    /// Tells of something.
    pub fn line(&self, text: &str) {
        match &mut *self.0.borrow_mut() {
            Kind::Lines(_) => println!("{text}"),
            Kind::Terminal(terminal) => {
                let lines = Text::raw(text.to_owned());
                let height = u16::try_from(lines.height()).unwrap_or(u16::MAX);
                let _ = terminal.insert_before(height, |buffer| Paragraph::new(lines).render(buffer.area, buffer));
            }
        }
    }

    /// Shows how it stands now. Where there are lines only, that is told once in a while.
    pub fn show(&self, moment: &Moment) {
        match &mut *self.0.borrow_mut() {
            Kind::Lines(told) if moment.is_told(*told) => {
                *told = moment.seconds.len();
                println!("{}", moment.line());
            }
            Kind::Lines(_) => {}
            // A terminal that is gone takes nothing from the run.
            Kind::Terminal(terminal) => drop(terminal.draw(|frame| view::draw(frame, moment))),
        }
    }

    /// From here on there are lines only.
    pub fn ends(&self) {
        if let Kind::Terminal(mut terminal) = self.0.replace(Kind::Lines(0)) {
            // Lines go on below what was drawn last.
            let below = terminal.get_frame().area().bottom().saturating_sub(1);
            let _ = terminal.set_cursor_position((0, below));
            let _ = terminal.show_cursor();
            println!();
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.ends();
    }
}
