package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"sigs.k8s.io/yaml"

	"sluice.dev/testenv/internal/apiclient"
)

const crdPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

var documentSeparator = regexp.MustCompile(`(?m)^---.*$`)

// customResourceDefinition is what the environment reads of one.
type customResourceDefinition struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Status struct {
		Conditions []condition `json:"conditions"`
	} `json:"status"`
}

type condition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
}

// readCRDs reads the CustomResourceDefinitions of the directories' YAML files, as JSON by name. Other kinds are left
// out, a kustomization say.
func readCRDs(dirs []string) (map[string]json.RawMessage, error) {
	found := map[string]json.RawMessage{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("read the CRDs: %w", err)
		}
		before := len(found)
		for _, entry := range entries {
			if extension := filepath.Ext(entry.Name()); extension != ".yaml" && extension != ".yml" {
				continue
			}
			if err := readCRDFile(filepath.Join(dir, entry.Name()), found); err != nil {
				return nil, err
			}
		}
		if len(found) == before {
			return nil, fmt.Errorf("%s holds no further CustomResourceDefinition", dir)
		}
	}
	return found, nil
}

// readCRDFile adds the CustomResourceDefinitions of one file to found.
func readCRDFile(path string, found map[string]json.RawMessage) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the CRDs: %w", err)
	}
	for _, document := range documentSeparator.Split(string(content), -1) {
		encoded, err := yaml.YAMLToJSON([]byte(document))
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		if bytes.Equal(encoded, []byte("null")) {
			continue
		}
		var crd customResourceDefinition
		if err := json.Unmarshal(encoded, &crd); err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		if crd.Kind == "CustomResourceDefinition" {
			found[crd.Metadata.Name] = encoded
		}
	}
	return nil
}

// established reports whether the API server serves the kind.
func established(ctx context.Context, client *apiclient.Client, name string) (bool, error) {
	var crd customResourceDefinition
	if err := client.Do(ctx, "GET", crdPath+"/"+name, nil, &crd); err != nil {
		return false, err
	}
	return slices.Contains(crd.Status.Conditions, condition{Type: "Established", Status: "True"}), nil
}
