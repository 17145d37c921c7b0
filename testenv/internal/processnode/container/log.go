package container

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// longestLine is where longer lines are cut into parts.
const longestLine = 16 << 10

// Log writes the output of a container to a file, in the format of the container runtime interface, which the kubelet reads.
type Log struct {
	path  string
	mutex sync.Mutex
	file  *os.File
}

// OpenLog opens the log for more output.
func OpenLog(path string) (*Log, error) {
	log := &Log{path: path}
	return log, log.Reopen()
}

// Reopen goes on in a new file after the kubelet has moved the old one away.
func (l *Log) Reopen() error {
	file, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("open the log of a container: %w", err)
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.file != nil {
		l.file.Close()
	}
	l.file = file
	return nil
}

// Close ends the log.
func (l *Log) Close() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.file.Close()
}

// Copy writes what a stream holds, until it ends. What the file can't take is lost, rather than the container kept waiting.
func (l *Log) Copy(stream string, from io.Reader) {
	reader := bufio.NewReaderSize(from, longestLine)
	for {
		line, err := reader.ReadSlice('\n')
		if len(line) > 0 {
			l.write(stream, line)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// write writes a line, or a part of one, which has no line feed at its end.
func (l *Log) write(stream string, line []byte) {
	tag := "P"
	if line[len(line)-1] == '\n' {
		tag, line = "F", line[:len(line)-1]
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	fmt.Fprintf(l.file, "%s %s %s %s\n", time.Now().UTC().Format(time.RFC3339Nano), stream, tag, line)
}
