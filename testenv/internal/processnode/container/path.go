package container

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// outputDelay is how long the output of a command may stay open, by what it left running, after its end.
const outputDelay = 2 * time.Second

// lookPath finds a program by the PATH of an environment.
func lookPath(program string, env []string) (string, error) {
	if strings.Contains(program, "/") {
		return program, nil
	}
	for _, variable := range env {
		path, found := strings.CutPrefix(variable, "PATH=")
		if !found {
			continue
		}
		for _, dir := range filepath.SplitList(path) {
			candidate := filepath.Join(dir, program)
			if info, err := os.Stat(candidate); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return candidate, nil
			}
		}
	}
	return "", fmt.Errorf("the program %q is not in the container's PATH", program)
}
