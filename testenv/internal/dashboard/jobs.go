package dashboard

import (
	"cmp"
	"time"
)

// defaultJobStatus is that of a job which nobody steers: it goes on.
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

// Job tells how the job of this id gets on. Nothing runs in fake pods, so nobody submits one: whoever asks for it finds it.
// An error is a *SteeredError.
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
