package images

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func load(t *testing.T, text string) (Table, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "images.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(path)
}

func TestAnImageIsFoundWithAndWithoutTheTagLatest(t *testing.T) {
	dir := t.TempDir()
	table, err := load(t, "ray:2: {path: "+dir+", command: [ray]}\nlocalhost:5000/small: {path: "+dir+"}\n")
	if err != nil {
		t.Fatal(err)
	}
	for asked, want := range map[string]string{
		"ray:2": "ray:2", "localhost:5000/small": "localhost:5000/small:latest", "localhost:5000/small:latest": "localhost:5000/small:latest",
	} {
		if got, _, err := table.Find(asked); err != nil || got != want {
			t.Errorf("%s is %q (%v), not %q", asked, got, err, want)
		}
	}
}

func TestAnUnknownImageIsRefusedWithThoseThatAreKnown(t *testing.T) {
	table, err := load(t, "b:1: {path: /}\na:1: {path: /}\n")
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = table.Find("c:1")
	var unknown *UnknownError
	if !errors.As(err, &unknown) || !strings.Contains(err.Error(), `"c:1"`) || !strings.Contains(err.Error(), "a:1, b:1") {
		t.Errorf("got %v", err)
	}
}

func TestATableThatMakesNoSenseIsRefused(t *testing.T) {
	for text, why := range map[string]string{
		"a: {path: /does/not/exist}":  "no such file",
		"a: {path: /etc/passwd}":      "directory",
		"a: {path: .}":                "absolute",
		"a: {path: /, comand: [x]}":   "comand",
		"a: {path: /, command: true}": "command",
	} {
		if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: got %v, which doesn't mention %q", text, err, why)
		}
	}
}
