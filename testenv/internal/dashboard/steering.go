package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// defaultDeployDelay is how long applications take to run.
const defaultDeployDelay = 300 * time.Millisecond

// applicationStatuses are those that Ray Serve knows.
var applicationStatuses = []string{"NOT_STARTED", "DEPLOYING", "DEPLOY_FAILED", "RUNNING", "UNHEALTHY", "DELETING"}

// Steering says how a dashboard is to behave. The zero value is a dashboard on which all goes well.
type Steering struct {
	// ApplicationStatus, unless empty, is the status of every application, from the moment of the deployment.
	ApplicationStatus string `json:"applicationStatus,omitempty"`
	// Message comes with the status of every application.
	Message string `json:"message,omitempty"`
	// DeployDelayMillis is how long applications are DEPLOYING; 300 when missing.
	DeployDelayMillis *int64 `json:"deployDelayMillis,omitempty"`
	// PutError, unless empty, is what every PUT fails with (code 500).
	PutError string `json:"putError,omitempty"`
	// GetError, unless empty, is what every GET fails with (code 500).
	GetError string `json:"getError,omitempty"`
	// HangMillis is how long every request waits before it is looked at.
	HangMillis int64 `json:"hangMillis,omitempty"`
}

// ParseSteering reads a steering from JSON. Unknown fields are errors: a misspelt one would steer nothing.
func ParseSteering(body []byte) (Steering, error) {
	var s Steering
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		return s, fmt.Errorf("the steering: %w", err)
	}
	if s.ApplicationStatus != "" && !slices.Contains(applicationStatuses, s.ApplicationStatus) {
		return s, fmt.Errorf("applicationStatus %q: must be one of %v", s.ApplicationStatus, applicationStatuses)
	}
	if s.DeployDelayMillis != nil && *s.DeployDelayMillis < 0 || s.HangMillis < 0 {
		return s, fmt.Errorf("deployDelayMillis and hangMillis must not be negative")
	}
	return s, nil
}

// Hang is how long a request waits before it is looked at.
func (s Steering) Hang() time.Duration { return time.Duration(s.HangMillis) * time.Millisecond }

func (s Steering) deployDelay() time.Duration {
	if s.DeployDelayMillis == nil {
		return defaultDeployDelay
	}
	return time.Duration(*s.DeployDelayMillis) * time.Millisecond
}
