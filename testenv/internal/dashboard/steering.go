package dashboard

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// defaultDeployDelay is how long applications take to run.
const defaultDeployDelay = 300 * time.Millisecond

// applicationStatuses are those that Ray Serve knows.
var applicationStatuses = []string{"NOT_STARTED", "DEPLOYING", "DEPLOY_FAILED", "RUNNING", "UNHEALTHY", "DELETING"}

// SteeredError is a failure that a test asked for.
type SteeredError struct {
	// Code is an HTTP status.
	Code    int
	Message string
}

func (e *SteeredError) Error() string { return e.Message }

// Steering says how a dashboard is to behave. The zero value is a dashboard on which all goes well.
type Steering struct {
	// ApplicationStatus, unless empty, is the status of every application, from the moment of the deployment.
	ApplicationStatus string `json:"applicationStatus,omitempty"`
	// JobStatus, unless empty, is the status of every job; they run when it is.
	JobStatus string `json:"jobStatus,omitempty"`
	// Message comes with the status of every application and job, and with the errors.
	Message string `json:"message,omitempty"`
	// DeployDelayMillis is how long applications are DEPLOYING; 300 when missing.
	DeployDelayMillis *int64 `json:"deployDelayMillis,omitempty"`
	// RunningReplicas is how many replicas of a deployment run at most, while more are STARTING; no limit when missing.
	RunningReplicas *int `json:"runningReplicas,omitempty"`
	// PutError, unless 0, is the HTTP status that every PUT fails with.
	PutError int `json:"putError,omitempty"`
	// GetError, unless 0, is the HTTP status that every GET fails with.
	GetError int `json:"getError,omitempty"`
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
	if s.JobStatus != "" && !slices.Contains(jobStatuses, s.JobStatus) {
		return s, fmt.Errorf("jobStatus %q: must be one of %v", s.JobStatus, jobStatuses)
	}
	for _, code := range []int{s.PutError, s.GetError} {
		if code != 0 && (code < 400 || code > 599) {
			return s, fmt.Errorf("putError and getError must be HTTP statuses from 400 to 599, %d is not", code)
		}
	}
	if s.DeployDelayMillis != nil && *s.DeployDelayMillis < 0 || s.HangMillis < 0 {
		return s, fmt.Errorf("deployDelayMillis and hangMillis must not be negative")
	}
	if s.RunningReplicas != nil && *s.RunningReplicas < 0 {
		return s, fmt.Errorf("runningReplicas must not be negative")
	}
	return s, nil
}

// failure is the error with this HTTP status; nil for 0.
func (s Steering) failure(code int) error {
	if code == 0 {
		return nil
	}
	return &SteeredError{Code: code, Message: cmp.Or(s.Message, "steered to fail")}
}

// Hang is how long a request waits before it is looked at.
func (s Steering) Hang() time.Duration { return time.Duration(s.HangMillis) * time.Millisecond }

// running is how many of so many replicas run.
func (s Steering) running(replicas int) int {
	if s.RunningReplicas == nil {
		return replicas
	}
	return min(replicas, *s.RunningReplicas)
}

func (s Steering) deployDelay() time.Duration {
	if s.DeployDelayMillis == nil {
		return defaultDeployDelay
	}
	return time.Duration(*s.DeployDelayMillis) * time.Millisecond
}
