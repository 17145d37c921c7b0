//! Output during the run: lines of changes, and below them, in a terminal, the current state.

mod view;

use std::cell::RefCell;
use std::io::{IsTerminal, Stdout, stdout};

use ratatui::backend::CrosstermBackend;
use ratatui::text::Text;
use ratatui::widgets::{Paragraph, Widget};
use ratatui::{Terminal, TerminalOptions, Viewport};

pub use view::ViewState;

/// The output of the demo. The last view stays in the terminal when the value is dropped.
pub struct Screen(RefCell<ScreenMode>);

enum ScreenMode {
    /// Lines only, for a file, a pipe, or a terminal that does not report its cursor. Holds the
    /// number of seconds summarized so far.
    Lines(usize),
    Terminal(Terminal<CrosstermBackend<Stdout>>),
}

impl Screen {
    /// Returns a screen on standard output.
    pub fn new() -> Self {
        let inline = || {
            let options = TerminalOptions { viewport: Viewport::Inline(view::HEIGHT) };
            Terminal::with_options(CrosstermBackend::new(stdout()), options).ok()
        };
        let terminal = stdout().is_terminal().then(inline).flatten();
        Self(RefCell::new(terminal.map_or(ScreenMode::Lines(0), ScreenMode::Terminal)))
    }

    /// Prints the title of the next step.
    pub fn title(&self, text: &str) {
        self.line(&format!("\n{text}"));
    }

    /// Prints a line above the view.
    pub fn line(&self, text: &str) {
        match &mut *self.0.borrow_mut() {
            ScreenMode::Lines(_) => println!("{text}"),
            ScreenMode::Terminal(terminal) => {
                let lines = Text::raw(text.to_owned());
                let height = u16::try_from(lines.height()).unwrap_or(u16::MAX);
                let _ = terminal.insert_before(height, |buffer| Paragraph::new(lines).render(buffer.area, buffer));
            }
        }
    }

    /// Shows the current state. With lines only, prints a summary at intervals.
    pub fn show(&self, moment: &ViewState) {
        match &mut *self.0.borrow_mut() {
            ScreenMode::Lines(printed) if moment.summary_is_due(*printed) => {
                *printed = moment.seconds.len();
                println!("{}", moment.summary());
            }
            ScreenMode::Lines(_) => {}
            // Errors of a closed terminal do not affect the run.
            ScreenMode::Terminal(terminal) => drop(terminal.draw(|frame| view::draw(frame, moment))),
        }
    }

    /// Switches to lines only.
    pub fn finish(&self) {
        if let ScreenMode::Terminal(mut terminal) = self.0.replace(ScreenMode::Lines(0)) {
            // Continue below the last view.
            let below = terminal.get_frame().area().bottom().saturating_sub(1);
            let _ = terminal.set_cursor_position((0, below));
            let _ = terminal.show_cursor();
            println!();
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.finish();
    }
}
