package dashboard

import (
	"encoding/json"
	"errors"
	"fmt"
)

// serveConfig is what a dashboard reads of a Serve configuration.
type serveConfig struct {
	TargetCapacity *float64            `json:"target_capacity"`
	Applications   []json.RawMessage   `json:"applications"`
	applications   []configApplication // Applications, decoded
}

type configApplication struct {
	Name        string             `json:"name"`
	RoutePrefix *string            `json:"route_prefix"`
	Deployments []configDeployment `json:"deployments"`
	// entry is the application's whole entry, in one form for one meaning.
	entry string
}

type configDeployment struct {
	Name string `json:"name"`
	// NumReplicas is a number, or "auto".
	NumReplicas json.RawMessage `json:"num_replicas"`
}

// replicas is how many replicas there are at full capacity, if that is said.
func (d *configDeployment) replicas() (int, bool) {
	var count *int
	err := json.Unmarshal(d.NumReplicas, &count)
	if err != nil || count == nil || *count < 0 {
		return 0, false
	}
	return *count, true
}

// parseConfig reads a Serve configuration as a dashboard does: an application without a name is called "default".
func parseConfig(body []byte) (*serveConfig, error) {
	var config serveConfig
	if err := json.Unmarshal(body, &config); err != nil {
		return nil, fmt.Errorf("the Serve configuration: %w", err)
	}
	if config.Applications == nil {
		return nil, errors.New("the Serve configuration: applications is required")
	}
	if c := config.TargetCapacity; c != nil && (*c < 0 || *c > 100) {
		return nil, fmt.Errorf("the Serve configuration: target_capacity is %v, must be from 0 to 100", *c)
	}
	seen := map[string]bool{}
	for _, raw := range config.Applications {
		var app configApplication
		var whole any
		if err := errors.Join(json.Unmarshal(raw, &app), json.Unmarshal(raw, &whole)); err != nil {
			return nil, fmt.Errorf("an application of the Serve configuration: %w", err)
		}
		if app.Name == "" {
			app.Name = "default"
		}
		if seen[app.Name] {
			return nil, fmt.Errorf("the Serve configuration: the application %q is there twice", app.Name)
		}
		seen[app.Name] = true
		entry, err := json.Marshal(whole)
		if err != nil {
			return nil, err
		}
		app.entry = string(entry)
		config.applications = append(config.applications, app)
	}
	return &config, nil
}

// sameCapacity reports whether two configurations ask for the same share of their replicas.
func (c *serveConfig) sameCapacity(other *serveConfig) bool {
	if c.TargetCapacity == nil || other.TargetCapacity == nil {
		return c.TargetCapacity == other.TargetCapacity
	}
	return *c.TargetCapacity == *other.TargetCapacity
}
