package supervisor

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// BackgroundCommand is the command that "testenv start" runs detached.
const BackgroundCommand = "background"

// StartInBackground starts this program detached with the arguments, which name dir too, and returns once the
// environment is ready, with its line of JSON written to out.
func StartInBackground(dir string, args []string, out io.Writer) error {
	own, err := os.Executable()
	if err != nil {
		return err
	}
	// A file takes the errors: a pipe would break once this process is gone. It stays, to tell why an environment ended.
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	complaints, err := os.OpenFile(layout{dir}.complaints(), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer complaints.Close()
	earlier, err := complaints.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	cmd := exec.Command(own, append([]string{BackgroundCommand}, args...)...)
	cmd.Stderr = complaints
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(output).ReadBytes('\n')
	if err != nil {
		// Its exit code says no more than what it wrote.
		_ = cmd.Wait()
		why, _ := io.ReadAll(io.NewSectionReader(complaints, earlier, 1<<20))
		return fmt.Errorf("the environment did not start: %s", why)
	}
	_, err = out.Write(line)
	return err
}

// StopInBackground stops the environment of a directory, waits until it is gone, and removes its files. One that was
// killed has only the files left.
func StopInBackground(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	environment := layout{dir}
	holder, err := environment.lockHolder()
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("no environment is in %s", dir)
	}
	if err != nil {
		return err
	}
	if holder == 0 {
		return environment.removeAll()
	}
	if err := syscall.Kill(holder, syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the environment's process %d: %w", holder, err)
	}
	for deadline := time.Now().Add(readyWithin); time.Now().Before(deadline); time.Sleep(pollEvery) {
		now, err := environment.lockHolder()
		if err != nil {
			return err
		}
		if now != holder {
			return environment.removeAll()
		}
	}
	return fmt.Errorf("the environment's process %d did not stop", holder)
}
