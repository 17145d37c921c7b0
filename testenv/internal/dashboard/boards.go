// Package dashboard is the part of a Ray head's dashboard that an operator speaks to, without Ray: it takes Serve
// configurations and tells how their applications get on, and how jobs do. It has no clock: the time is an argument.
package dashboard

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"sync"
	"time"
)

// Service names a head's service. In a steering "*" stands for every service of a namespace, or every namespace.
type Service struct {
	Namespace, Name string
}

// Boards are the dashboards of all heads, by their services.
type Boards struct {
	mutex    sync.Mutex
	boards   map[Service]*board
	steering map[Service]Steering
}

// board is one dashboard. Ray keeps the applications in the head: they are gone with its pod.
type board struct {
	headUID string
	config  *serveConfig
	// progress is what became of each application of config, by name.
	progress map[string]progress
	// jobs is when each job was first asked for, by id.
	jobs map[string]time.Time

	last       json.RawMessage
	puts, gets int
}

// progress is what became of an application.
type progress struct {
	// deployed is when it was last deployed.
	deployed time.Time
	// scaled is when the capacity last changed since then; zero if it has not.
	scaled time.Time
	// before is the capacity before that, in percent.
	before *float64
}

// Summary tells a test what happened to one dashboard.
type Summary struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	// Config is the last Serve configuration that was accepted, null before the first; it outlives the head.
	Config json.RawMessage `json:"config"`
	// Puts and Gets count the requests that reached the dashboard, failed ones too.
	Puts int `json:"puts"`
	Gets int `json:"gets"`
	// Steering is what applies to this dashboard now.
	Steering Steering `json:"steering"`
}

// Details is the answer of GET /api/serve/applications/.
type Details struct {
	DeployMode     string                 `json:"deploy_mode"`
	TargetCapacity *float64               `json:"target_capacity"`
	Applications   map[string]Application `json:"applications"`
}

// Application tells how one application gets on.
type Application struct {
	Name        string                `json:"name"`
	Status      string                `json:"status"`
	Message     string                `json:"message"`
	RoutePrefix *string               `json:"route_prefix"`
	DocsPath    *string               `json:"docs_path"`
	Deployments map[string]Deployment `json:"deployments"`
}

// Deployment tells how one deployment of an application gets on.
type Deployment struct {
	Name    string `json:"name"`
	Status  string `json:"status"`
	Message string `json:"message"`
	// The rest is missing where the configuration does not say how many replicas there are to be.
	Config            *DeploymentConfig `json:"deployment_config,omitempty"`
	TargetNumReplicas *int              `json:"target_num_replicas,omitempty"`
	Replicas          []Replica         `json:"replicas,omitzero"`
}

// DeploymentConfig is how a deployment is configured.
type DeploymentConfig struct {
	// NumReplicas is how many replicas there are at full capacity.
	NumReplicas int `json:"num_replicas"`
}

// Replica is a replica of a deployment.
type Replica struct {
	State string `json:"state"`
}

// New makes an empty set of dashboards.
func New() *Boards {
	return &Boards{boards: map[Service]*board{}, steering: map[Service]Steering{}}
}

// Put applies a Serve configuration. Applications that it changes are redeployed; the others continue, and another
// capacity changes their number of replicas.
// The error is a *SteeredError if a test asked for it, otherwise the configuration is wrong.
func (b *Boards) Put(now time.Time, service Service, headUID string, body []byte) error {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	board := b.board(service, headUID)
	board.puts++
	steering := b.steeringOf(service)
	if err := steering.failure(steering.PutError); err != nil {
		return err
	}
	config, err := parseConfig(body)
	if err != nil {
		return err
	}
	next := map[string]progress{}
	for _, app := range config.applications {
		next[app.Name] = board.after(now, config, app)
	}
	board.config, board.progress, board.last = config, next, slices.Clone(body)
	return nil
}

// after is what becomes of an application of the next configuration.
func (b *board) after(now time.Time, next *serveConfig, app configApplication) progress {
	if b.config == nil || !slices.ContainsFunc(
		b.config.applications, func(was configApplication) bool { return was.entry == app.entry }) {
		return progress{deployed: now}
	}
	was := b.progress[app.Name]
	if b.config.sameCapacity(next) {
		return was
	}
	return progress{deployed: was.deployed, scaled: now, before: b.config.TargetCapacity}
}

// Get tells how the applications get on. An error is a *SteeredError.
func (b *Boards) Get(now time.Time, service Service, headUID string) (*Details, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	board, steering, err := b.read(service, headUID)
	if err != nil {
		return nil, err
	}
	if board.config == nil {
		return &Details{DeployMode: "UNSET", Applications: map[string]Application{}}, nil
	}
	details := &Details{
		DeployMode:     "MULTI_APP",
		TargetCapacity: board.config.TargetCapacity,
		Applications:   map[string]Application{},
	}
	for _, app := range board.config.applications {
		details.Applications[app.Name] = app.at(now, board.config.TargetCapacity, board.progress[app.Name], steering)
	}
	return details, nil
}

// read is what a dashboard that is asked something goes by; the caller holds the mutex. The error is a *SteeredError.
func (b *Boards) read(service Service, headUID string) (*board, Steering, error) {
	board := b.board(service, headUID)
	board.gets++
	steering := b.steeringOf(service)
	return board, steering, steering.failure(steering.GetError)
}

// at is how the application gets on, at this capacity.
func (a *configApplication) at(now time.Time, capacity *float64, since progress, steering Steering) Application {
	status := "DEPLOYING"
	if now.Sub(since.deployed) >= steering.deployDelay() {
		status = "RUNNING"
	}
	status = cmp.Or(steering.ApplicationStatus, status)
	// share is the capacity that there are running replicas for. What is added to them starts first.
	share := capacity
	if now.Sub(since.scaled) < steering.deployDelay() {
		share = since.before
	}
	deployments := map[string]Deployment{}
	for _, d := range a.Deployments {
		shown := Deployment{Name: d.Name, Status: deploymentStatus(status), Message: steering.Message}
		if full, said := d.replicas(); said {
			running := 0
			if status == "RUNNING" {
				running = steering.running(adjusted(full, share))
			}
			shown.scale(full, adjusted(full, capacity), running)
		}
		deployments[d.Name] = shown
	}
	return Application{
		Name: a.Name, Status: status, Message: steering.Message, RoutePrefix: a.RoutePrefix, Deployments: deployments,
	}
}

// scale fills in that so many replicas of a deployment that has full of them are wanted, and how many of them run.
func (d *Deployment) scale(full, wanted, running int) {
	d.Config, d.TargetNumReplicas = &DeploymentConfig{NumReplicas: full}, &wanted
	d.Replicas = make([]Replica, wanted)
	for i := range d.Replicas {
		d.Replicas[i].State = "STARTING"
		if i < running {
			d.Replicas[i].State = "RUNNING"
		}
	}
}

// adjusted is how many replicas Serve runs of so many, at a capacity in percent (ray-project/ray
// python/ray/serve/_private/utils.py, get_capacity_adjusted_num_replicas, as of Ray 2.53).
func adjusted(full int, capacity *float64) int {
	if capacity == nil {
		return full
	}
	if full == 0 || *capacity == 0 {
		return 0
	}
	return max(1, int(math.Round(float64(full)**capacity/100)))
}

// deploymentStatus is the status of the deployments of an application that has this status.
func deploymentStatus(application string) string {
	switch application {
	case "RUNNING":
		return "HEALTHY"
	case "UNHEALTHY", "DEPLOY_FAILED":
		return "UNHEALTHY"
	default:
		return "UPDATING"
	}
}

// Steer sets how a service's dashboard behaves from now on.
func (b *Boards) Steer(service Service, steering Steering) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.steering[service] = steering
}

// Release undoes Steer.
func (b *Boards) Release(service Service) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	delete(b.steering, service)
}

// SteeringOf is what applies to a service: the closest of its own, its namespace's and everyone's.
func (b *Boards) SteeringOf(service Service) Steering {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.steeringOf(service)
}

// List tells what happened to all dashboards that were ever reached, by namespace and service.
func (b *Boards) List() []Summary {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	services := slices.SortedFunc(maps.Keys(b.boards), func(x, y Service) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	list := make([]Summary, 0, len(services))
	for _, s := range services {
		board := b.boards[s]
		list = append(list, Summary{
			Namespace: s.Namespace, Service: s.Name, Config: board.last, Puts: board.puts, Gets: board.gets,
			Steering: b.steeringOf(s),
		})
	}
	return list
}

func (b *Boards) steeringOf(service Service) Steering {
	for _, candidate := range []Service{service, {service.Namespace, "*"}, {"*", "*"}} {
		if steering, found := b.steering[candidate]; found {
			return steering
		}
	}
	return Steering{}
}

// board is the dashboard of a service whose head is this pod; another pod than before starts without applications.
func (b *Boards) board(service Service, headUID string) *board {
	found := b.boards[service]
	if found == nil {
		found = &board{headUID: headUID, jobs: map[string]time.Time{}}
		b.boards[service] = found
	}
	if found.headUID != headUID {
		found.headUID, found.config, found.progress, found.jobs = headUID, nil, nil, map[string]time.Time{}
	}
	return found
}
