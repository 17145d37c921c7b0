package dashboard

import (
	"cmp"
	"time"
)

// defaultJobStatus is the status of a job without a steered one: it keeps running.
const defaultJobStatus = "RUNNING"

// jobStatuses are those that Ray knows.
var jobStatuses = []string{"PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"}

// Job is the answer of GET /api/jobs/{id}. Times are milliseconds since 1970.
type Job struct {
	Type         string `json:"type"`
	JobID        string `json:"job_id"`
	SubmissionID string `json:"submission_id"`
	Status       string `json:"status"`
	Message      string `json:"message"`
	StartTime    int64  `json:"start_time"`
	EndTime      int64  `json:"end_time,omitempty"`
}

// Job returns the status of the job with this id. Nothing runs in fake pods, so none is submitted: every job exists. An error
// is a *SteeredError.
func (b *Boards) Job(now time.Time, service Service, headUID, id string) (*Job, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	board, steering, err := b.read(service, headUID)
	if err != nil {
		return nil, err
	}
	if board.jobs[id].IsZero() {
		board.jobs[id] = now
	}
	job := &Job{
		Type: "SUBMISSION", JobID: id, SubmissionID: id, Status: cmp.Or(steering.JobStatus, defaultJobStatus),
		Message: steering.Message, StartTime: board.jobs[id].UnixMilli(),
	}
	if job.Status != "PENDING" && job.Status != "RUNNING" {
		job.EndTime = now.UnixMilli()
	}
	return job, nil
}
