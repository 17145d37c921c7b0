package dashboard

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

const config = `{"applications":[{"name":"chat","route_prefix":"/chat","deployments":[{"name":"Model"},{"name":"Router"}]}]}`

var (
	service = Service{Namespace: "ns", Name: "head-svc"}
	start   = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

func put(t *testing.T, b *Boards, after time.Duration, head, body string) {
	t.Helper()
	if err := b.Put(start.Add(after), service, head, []byte(body)); err != nil {
		t.Fatalf("PUT after %v: %v", after, err)
	}
}

// statuses are the statuses of the applications, by name.
func statuses(t *testing.T, b *Boards, after time.Duration, head string) map[string]string {
	t.Helper()
	details, err := b.Get(start.Add(after), service, head)
	if err != nil {
		t.Fatalf("GET after %v: %v", after, err)
	}
	found := map[string]string{}
	for name, app := range details.Applications {
		found[name] = app.Status
	}
	return found
}

func expect(t *testing.T, got map[string]string, want ...string) {
	t.Helper()
	if len(got) != len(want)/2 {
		t.Fatalf("applications are %v, want %v", got, want)
	}
	for i := 0; i < len(want); i += 2 {
		if got[want[i]] != want[i+1] {
			t.Errorf("application %s is %q, want %q", want[i], got[want[i]], want[i+1])
		}
	}
}

func TestADashboardHasNoApplicationsBeforeTheFirstPut(t *testing.T) {
	expect(t, statuses(t, New(), 0, "a"))
}

func TestApplicationsDeployAndThenRun(t *testing.T) {
	b := New()
	put(t, b, 0, "a", config)
	expect(t, statuses(t, b, 299*time.Millisecond, "a"), "chat", "DEPLOYING")
	expect(t, statuses(t, b, 300*time.Millisecond, "a"), "chat", "RUNNING")
}

func TestDeploymentsFollowTheirApplication(t *testing.T) {
	b := New()
	put(t, b, 0, "a", config)
	for after, want := range map[time.Duration]string{0: "UPDATING", time.Second: "HEALTHY"} {
		details, err := b.Get(start.Add(after), service, "a")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"Model", "Router"} {
			if got := details.Applications["chat"].Deployments[name].Status; got != want {
				t.Errorf("deployment %s after %v is %q, want %q", name, after, got, want)
			}
		}
	}
}

func TestAnApplicationWithoutANameIsCalledDefault(t *testing.T) {
	b := New()
	put(t, b, 0, "a", `{"applications":[{"import_path":"x:y"}]}`)
	expect(t, statuses(t, b, 0, "a"), "default", "DEPLOYING")
}

func TestOnlyChangedApplicationsDeployAnew(t *testing.T) {
	b := New()
	put(t, b, 0, "a", `{"applications":[{"name":"x","import_path":"1"},{"name":"y"}]}`)
	put(t, b, time.Second, "a", `{"applications":[{"import_path":"2","name":"x"},{"name":"y"},{"name":"z"}]}`)
	expect(t, statuses(t, b, time.Second, "a"), "x", "DEPLOYING", "y", "RUNNING", "z", "DEPLOYING")
}

// replicas returns what is reported of one deployment: the desired number, and the states of existing replicas.
func replicas(t *testing.T, b *Boards, after time.Duration) (int, string) {
	t.Helper()
	details, err := b.Get(start.Add(after), service, "a")
	if err != nil {
		t.Fatal(err)
	}
	model := details.Applications["chat"].Deployments["Model"]
	if model.TargetNumReplicas == nil || model.Config == nil {
		t.Fatalf("no replicas are reported: %+v", model)
	}
	states := make([]string, 0, len(model.Replicas))
	for _, replica := range model.Replicas {
		states = append(states, replica.State)
	}
	return *model.TargetNumReplicas, strings.Join(states, " ")
}

func ofCapacity(full int, capacity string) string {
	return fmt.Sprintf(
		`{"applications":[{"name":"chat","deployments":[{"name":"Model","num_replicas":%d}]}],"target_capacity":%s}`,
		full, capacity)
}

func TestThereAreAsManyReplicasAsServeRunsAtTheCapacity(t *testing.T) {
	for _, c := range []struct {
		full     int
		capacity string
		want     int
	}{
		{4, "null", 4}, {4, "100", 4}, {4, "50", 2}, {5, "50", 3}, {3, "40", 1}, {1, "50", 1}, {10, "1", 1},
		{7, "33.3", 2}, {4, "0", 0}, {0, "50", 0},
	} {
		b := New()
		put(t, b, 0, "a", ofCapacity(c.full, c.capacity))
		wanted, states := replicas(t, b, time.Second)
		if running := strings.Count(states, "RUNNING"); wanted != c.want || running != c.want {
			t.Errorf("%d at %s %%: %d are wanted, %d run, want %d", c.full, c.capacity, wanted, running, c.want)
		}
	}
}

func TestReplicasStartWhileTheirApplicationDeploys(t *testing.T) {
	b := New()
	put(t, b, 0, "a", ofCapacity(2, "null"))
	if wanted, states := replicas(t, b, 299*time.Millisecond); wanted != 2 || states != "STARTING STARTING" {
		t.Errorf("%d are wanted: %s", wanted, states)
	}
}

func TestAnotherTargetCapacityStartsOnlyWhatItAdds(t *testing.T) {
	b := New()
	put(t, b, 0, "a", ofCapacity(4, "25"))
	expectReplicas := func(after time.Duration, states string) {
		t.Helper()
		expect(t, statuses(t, b, after, "a"), "chat", "RUNNING")
		if wanted, is := replicas(t, b, after); wanted != len(strings.Fields(states)) || is != states {
			t.Errorf("after %v %d are wanted: %s, want %s", after, wanted, is, states)
		}
	}
	put(t, b, time.Second, "a", ofCapacity(4, "75"))
	expectReplicas(1299*time.Millisecond, "RUNNING STARTING STARTING")
	expectReplicas(1300*time.Millisecond, "RUNNING RUNNING RUNNING")
	put(t, b, 2*time.Second, "a", ofCapacity(4, "50"))
	expectReplicas(2*time.Second, "RUNNING RUNNING")
	put(t, b, 3*time.Second, "a", ofCapacity(4, "null"))
	expectReplicas(3*time.Second, "RUNNING RUNNING STARTING STARTING")
}

func TestSteeringLimitsHowManyReplicasRun(t *testing.T) {
	b := New()
	limit := 1
	b.Steer(service, Steering{RunningReplicas: &limit})
	put(t, b, 0, "a", ofCapacity(4, "50"))
	if wanted, states := replicas(t, b, time.Second); wanted != 2 || states != "RUNNING STARTING" {
		t.Errorf("%d are wanted: %s", wanted, states)
	}
	b.Release(service)
	if _, states := replicas(t, b, time.Second); states != "RUNNING RUNNING" {
		t.Errorf("without a limit: %s", states)
	}
}

func TestTheTargetCapacityIsTold(t *testing.T) {
	b := New()
	put(t, b, 0, "a", ofCapacity(4, "50"))
	details, err := b.Get(start.Add(time.Second), service, "a")
	if err != nil || details.TargetCapacity == nil || *details.TargetCapacity != 50 {
		t.Errorf("target capacity is not 50: %+v, %v", details, err)
	}
}

func TestWhatIsNotSaidOfReplicasIsNotTold(t *testing.T) {
	b := New()
	put(t, b, 0, "a", `{"applications":[{"name":"x","deployments":[{"name":"A"},{"name":"B","num_replicas":"auto"}]}]}`)
	details, err := b.Get(start.Add(time.Second), service, "a")
	if err != nil {
		t.Fatal(err)
	}
	for name, deployment := range details.Applications["x"].Deployments {
		if reported, _ := json.Marshal(deployment); string(reported) != `{"name":"`+name+`","status":"HEALTHY","message":""}` {
			t.Errorf("%s: %s", name, reported)
		}
	}
}

func TestANewHeadHasLostTheApplications(t *testing.T) {
	b := New()
	put(t, b, 0, "a", config)
	expect(t, statuses(t, b, time.Second, "b"))
	if list := b.List(); string(list[0].Config) != config || list[0].Puts != 1 || list[0].Gets != 1 {
		t.Errorf("the list forgot what happened: %+v", list)
	}
}

func TestAWrongConfigurationChangesNothing(t *testing.T) {
	b := New()
	put(t, b, 0, "a", config)
	for _, wrong := range []string{
		`{`, `{}`, `{"applications":[{"name":"x"},{"name":"x"}]}`, `{"applications":[],"target_capacity":101}`,
	} {
		if err := b.Put(start, service, "a", []byte(wrong)); err == nil || errors.As(err, new(*SteeredError)) {
			t.Errorf("PUT of %s: %v, want an error of its own", wrong, err)
		}
	}
	expect(t, statuses(t, b, time.Second, "a"), "chat", "RUNNING")
}

func TestSteeringSetsTheStatusAndTheMessage(t *testing.T) {
	b := New()
	put(t, b, 0, "a", config)
	b.Steer(service, Steering{ApplicationStatus: "DEPLOY_FAILED", Message: "no such module"})
	details, err := b.Get(start, service, "a")
	if err != nil {
		t.Fatal(err)
	}
	app := details.Applications["chat"]
	if app.Status != "DEPLOY_FAILED" || app.Message != "no such module" || app.Deployments["Model"].Status != "UNHEALTHY" {
		t.Errorf("got %+v", app)
	}
	b.Release(service)
	expect(t, statuses(t, b, time.Second, "a"), "chat", "RUNNING")
}

func TestSteeringSetsTheDeployDelay(t *testing.T) {
	b := New()
	delay := int64(5000)
	b.Steer(service, Steering{DeployDelayMillis: &delay})
	put(t, b, 0, "a", config)
	expect(t, statuses(t, b, 4999*time.Millisecond, "a"), "chat", "DEPLOYING")
	expect(t, statuses(t, b, 5*time.Second, "a"), "chat", "RUNNING")
}

func TestSteeredErrorsAreCountedAndChangeNothing(t *testing.T) {
	b := New()
	b.Steer(service, Steering{PutError: 500, GetError: 503, Message: "disk full"})
	var steered *SteeredError
	if err := b.Put(start, service, "a", []byte(config)); !errors.As(err, &steered) || *steered != (SteeredError{500, "disk full"}) {
		t.Errorf("PUT: %v", err)
	}
	if _, err := b.Get(start, service, "a"); !errors.As(err, &steered) || *steered != (SteeredError{503, "disk full"}) {
		t.Errorf("GET: %v", err)
	}
	if list := b.List(); list[0].Puts != 1 || list[0].Gets != 1 || list[0].Config != nil {
		t.Errorf("list: %+v", list)
	}
}

func TestTheClosestSteeringApplies(t *testing.T) {
	b := New()
	b.Steer(Service{"*", "*"}, Steering{Message: "all"})
	b.Steer(Service{"ns", "*"}, Steering{Message: "namespace"})
	b.Steer(service, Steering{Message: "own"})
	for want, of := range map[string]Service{
		"own": service, "namespace": {"ns", "other"}, "all": {"elsewhere", "head-svc"},
	} {
		if got := b.SteeringOf(of).Message; got != want {
			t.Errorf("steering of %v is %q, want %q", of, got, want)
		}
	}
}

func TestAWrongSteeringIsRefused(t *testing.T) {
	for _, wrong := range []string{`{"aplicationStatus":"RUNNING"}`, `{"applicationStatus":"FINE"}`, `{"hangMillis":-1}`, `{"putError":200}`, `{"runningReplicas":-1}`, `[]`} {
		if _, err := ParseSteering([]byte(wrong)); err == nil {
			t.Errorf("%s was accepted", wrong)
		}
	}
}
