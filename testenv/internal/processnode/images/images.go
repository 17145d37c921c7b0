// Package images maps the image references of pods to environments on disk, such as Python's virtual environments: two
// versions of a program so run side by side.
package images

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Environment is what stands for one image.
type Environment struct {
	// Path is a directory, whose "bin" comes first in PATH.
	Path string `json:"path"`
	// Env is added to the environment of the containers; what the pod says goes before it.
	Env map[string]string `json:"env,omitempty"`
	// Command is run when the pod names none.
	Command []string `json:"command,omitempty"`
}

// Table holds the environments by image reference.
type Table map[string]Environment

// UnknownError says that no environment stands for an image.
type UnknownError struct {
	Image string
	Known []string
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("no environment stands for the image %q; those known are: %s", e.Image, strings.Join(e.Known, ", "))
}

// Load reads a table from a YAML or JSON file. Unknown fields and directories that aren't there are refused.
func Load(path string) (Table, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the images: %w", err)
	}
	var read Table
	if err := yaml.UnmarshalStrict(text, &read); err != nil {
		return nil, fmt.Errorf("read the images of %s: %w", path, err)
	}
	table := make(Table, len(read))
	for image, environment := range read {
		if environment.Path, err = filepath.EvalSymlinks(environment.Path); err != nil {
			return nil, fmt.Errorf("find the environment of the image %q: %w", image, err)
		}
		if info, err := os.Stat(environment.Path); err != nil || !info.IsDir() || !filepath.IsAbs(environment.Path) {
			return nil, fmt.Errorf("the path %q of the image %q is not the absolute path of a directory", environment.Path, image)
		}
		table[normalized(image)] = environment
	}
	return table, nil
}

// Find returns the environment of an image, and its reference with a tag, or an *UnknownError.
func (t Table) Find(image string) (string, Environment, error) {
	reference := normalized(image)
	environment, known := t[reference]
	if !known {
		return "", Environment{}, &UnknownError{Image: image, Known: t.References()}
	}
	return reference, environment, nil
}

// References are those of all images, sorted.
func (t Table) References() []string {
	references := make([]string, 0, len(t))
	for reference := range t {
		references = append(references, reference)
	}
	slices.Sort(references)
	return references
}

// normalized gives a reference without a tag and digest the tag "latest", as the kubelet does.
func normalized(image string) string {
	if strings.Contains(image[strings.LastIndex(image, "/")+1:], ":") || strings.Contains(image, "@") {
		return image
	}
	return image + ":latest"
}
