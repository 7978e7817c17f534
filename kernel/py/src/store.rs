//! `Store` of the Python interface.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kerolox_core::fast_path::{
    AccountRules, CallCounts, Commit, CopyRule, Encoding, FastCalls, FastPath, GroupStats,
    Identity, KeyProperty, Lag, Lease, LentCount, LentName, NO_SLOT, NewHold, NewLent, NewWait,
    Subscription, TimerRule, WindowStats,
};
use kerolox_core::{BitFilter, Filter, QueuedValues, RecoveryReport};
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyBytesMethods, PyDict, PyInt, PyMapping, PyTuple};

use crate::buffer::with_bytes;
use crate::errors::to_python;
use crate::following::MasterStream;
use crate::records::{self, checked_host};
use crate::shapes::{
    APPENDED, BATCH_APPENDED, COPIED, HALF_RUN, HALVES_ENDED, KEY_WINDOW, QUEUE_BOUNDS, READ,
    RECOVERY_REPORT, counters,
};

/// What one entry of `queue_properties` is.
type QueuedItem<'py> = (i64, i64, i32, Option<Bound<'py, PyTuple>>);

/// The members of `Copies`.
type CopiesGiven<'py> = (
    Vec<i64>,
    Vec<Bound<'py, PyBytes>>,
    Vec<Bound<'py, PyBytes>>,
    Vec<Bound<'py, PyBytes>>,
    Option<i64>,
    bool,
);

/// Commit log, consume queues, index and the tables of the fast path.
#[pyclass(frozen, module = "kerolox_kernel")]
pub struct Store {
    fast: Arc<FastPath>,
}

impl Store {
    /// What connections share.
    pub fn fast(&self) -> &Arc<FastPath> {
        &self.fast
    }
}

/// Tag codes as the engine wants them: Java's 32-bit hashes.
#[allow(clippy::needless_pass_by_value)] // made from Python's sequence for this call
fn hashes(codes: Option<Vec<i64>>) -> Option<Vec<i32>> {
    codes.map(|codes| codes.iter().map(|code| *code as i32).collect())
}

/// A deadline: a client may ask for more milliseconds than there are numbers.
fn deadline(milliseconds: &Bound<'_, PyAny>) -> PyResult<i64> {
    milliseconds.extract().or_else(|error: PyErr| {
        let is_large = error.is_instance_of::<PyOverflowError>(milliseconds.py());
        if is_large { Ok(i64::MAX) } else { Err(error) }
    })
}

/// A path of the store: its root came as text.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// One account from its named tuple.
fn account_rules(given: &Bound<'_, PyTuple>) -> PyResult<AccountRules> {
    let (access_key, secret_key, may_everything, default_topic, default_group, resources) =
        given.extract::<(_, _, _, _, _, Bound<'_, PyMapping>)>()?;
    let items = resources.items()?;
    let resources = items.iter().map(|item| item.extract()).collect::<PyResult<_>>()?;
    Ok(AccountRules {
        access_key,
        secret_key,
        may_everything,
        default_topic,
        default_group,
        resources,
    })
}

/// A lease of pops as Python has it: start, count, open, pop time, first pop time, invisible time,
/// end, owner, whether the broker renews it.
type PlainLease = (i64, u32, u32, i64, i64, i64, i64, String, bool);

/// A lease from Python's.
fn lease(plain: PlainLease) -> Lease {
    let (start, count, open, pop_time, first, invisible_ms, end, owner, is_renewed) = plain;
    Lease {
        start,
        count,
        open,
        pop_time,
        first_pop_time: first,
        invisible_ms,
        visible_at: end,
        owner: owner.into(),
        is_renewed,
    }
}

/// A lease for Python.
fn plain_lease(lease: &Lease) -> PlainLease {
    let Lease { start, count, open, pop_time, first_pop_time, owner, is_renewed, .. } = lease;
    let times = (*pop_time, *first_pop_time, lease.invisible_ms, lease.visible_at);
    (*start, *count, *open, times.0, times.1, times.2, times.3, owner.to_string(), *is_renewed)
}

/// A lent queue for Python: committed, next offset, newest pop time, leases.
type PlainLent = (i64, i64, i64, Vec<PlainLease>);

/// The members of a recovery report, in the order of the face.
fn report_values(py: Python<'_>, report: RecoveryReport) -> PyResult<Bound<'_, PyTuple>> {
    let yes = |value: bool| PyBool::new(py, value).to_owned().into_any();
    let number = |value: i64| PyInt::new(py, value).into_any();
    PyTuple::new(
        py,
        [
            yes(report.clean),
            number(report.min_offset),
            number(report.max_offset),
            number(report.scanned_bytes),
            number(report.truncated_bytes),
            number(report.dispatched),
            number(report.indexed),
            number(report.queues),
            report.notes.into_pyobject(py)?,
            yes(report.same_boot),
            number(report.begin_offset),
            number(report.records),
            number(report.cut_entries),
            number(report.rebuilt_queues),
            number(report.removed_index_files),
            number(report.set_aside_files),
            number(report.duration_ms),
        ],
    )
}

#[pymethods]
#[allow(clippy::needless_pass_by_value)] // arguments are made from Python objects for one call
impl Store {
    /// Touches no file. `settings` is a `kerolox.kernel.settings.StoreSettings`.
    #[new]
    fn new(settings: &Bound<'_, PyAny>) -> PyResult<Self> {
        let settings = crate::settings::from_python(settings)?;
        Ok(Self { fast: Arc::new(FastPath::new(settings)) })
    }

    /// Lock the folder, load the files, recover, start the helper threads.
    fn open<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let report = py.detach(|| self.fast.store().open()).map_err(|error| to_python(&error))?;
        RECOVERY_REPORT.make(py, report_values(py, report)?)
    }

    /// Flush, write the checkpoint, remove the abort file, release the lock. Idempotent.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.fast.close()).map_err(|error| to_python(&error))
    }

    /// Flush everything now, queues, index and checkpoint too; the new flushed offset.
    fn flush(&self, py: Python<'_>) -> PyResult<i64> {
        py.detach(|| self.fast.store().flush()).map_err(|error| to_python(&error))
    }

    /// A descriptor that becomes readable when `drain_ready` or `flushed_offset` moved, or a
    /// flush failed.
    #[getter]
    fn notify_fd(&self) -> i32 {
        self.fast.store().notify_fd()
    }

    /// Freeze the clock at `now_ms` for store timestamps (tests); None thaws it.
    fn set_clock(&self, now_ms: Option<i64>) {
        self.fast.store().set_clock(now_ms);
    }

    /// What goes into records and answers.
    #[pyo3(signature = (*, cluster, region, trace_on, store_host, broker_id))]
    fn set_identity(
        &self,
        cluster: &str,
        region: &str,
        trace_on: bool,
        store_host: &[u8],
        broker_id: i64,
    ) -> PyResult<()> {
        let store_host = checked_host(store_host)?;
        self.fast.set_identity(Identity::new(cluster, region, trace_on, store_host, broker_id));
        Ok(())
    }

    /// Put a topic into the table.
    fn set_topic(&self, topic: &str, read_queues: i32, write_queues: i32, perm: i32, fast: bool) {
        self.fast.set_topic(topic, read_queues, write_queues, perm, fast);
    }

    /// Say which messages that come by gRPC are fast.
    #[pyo3(signature = (topic, *, normal, fifo))]
    fn set_fast_calls(&self, topic: &str, normal: bool, fifo: bool) {
        self.fast.set_fast_calls(topic, FastCalls { normal, fifo });
    }

    /// Take a topic out of the table; its files stay.
    fn delete_topic(&self, topic: &str) {
        self.fast.delete_topic(topic);
    }

    /// Whether sends of half messages are fast.
    fn set_halves(&self, fast: bool) {
        self.fast.set_halves(fast);
    }

    /// Which sends for a moment are fast; none with steps of 0.
    fn set_timer(&self, precision_ms: i64, max_delay_ms: i64, broker_name: &str) {
        let rule = || TimerRule {
            precision_ms,
            max_delay_ms,
            broker_name: broker_name.into(),
            topic: NO_SLOT,
        };
        self.fast.set_timer((precision_ms > 0).then(rule));
    }

    /// (where the next call goes on, runs of halves of a producer group with a `KEROLOX_SINK`).
    fn half_runs<'py>(
        &self,
        py: Python<'py>,
        group: &str,
        start: i64,
        end: i64,
        max_bytes: usize,
    ) -> PyResult<(i64, Vec<Bound<'py, PyAny>>)> {
        let (next, runs) = self.fast.half_runs(group.as_bytes(), start, end, max_bytes);
        let runs = runs.into_iter().map(|run| {
            let sink = String::from_utf8_lossy(&run.sink).into_owned();
            HALF_RUN.make(py, (sink, run.first, run.count, run.is_plain))
        });
        Ok((next, runs.collect::<PyResult<_>>()?))
    }

    /// Which half each op message of a range ends; -1: none.
    fn half_ops(&self, start: i64, end: i64) -> Vec<i64> {
        self.fast.half_ops(start, end)
    }

    /// End plain halves that follow each other; wakes held pulls.
    fn end_halves<'py>(
        &self,
        py: Python<'py>,
        first: i64,
        count: i64,
        commit: bool,
        now_ms: i64,
        host: &[u8],
    ) -> PyResult<Bound<'py, PyAny>> {
        let host = checked_host(host)?;
        let done = self.fast.end_halves(first, count, commit, now_ms, host);
        HALVES_ENDED.make(py, (done.count, done.first_op, done.is_unnoted))
    }

    /// Give a topic a window of keys.
    fn set_dedup(&self, topic: &str, window_ms: i64, by_keys: bool) {
        let property = if by_keys { KeyProperty::Keys } else { KeyProperty::Unique };
        self.fast.set_dedup(topic, (window_ms > 0).then_some((property, window_ms)));
    }

    /// How many keys all topics have together.
    fn set_dedup_limit(&self, keys: usize) {
        self.fast.set_dedup_limit(keys);
    }

    /// Where the first record with a key in the window is.
    fn find_key(&self, topic: &str, key: &[u8]) -> i64 {
        self.fast.find_key(topic, key).unwrap_or(-1)
    }

    /// Note keys with the physical offsets of their records.
    #[allow(clippy::needless_pass_by_value)] // made from Python's sequence for this call
    fn note_keys(&self, topic: &str, keys: Vec<(Bound<'_, PyBytes>, i64)>) {
        let keys: Vec<(&[u8], i64)> =
            keys.iter().map(|(key, offset)| (key.as_bytes(), *offset)).collect();
        self.fast.note_keys(topic, &keys);
    }

    /// Take a key out of the window.
    fn forget_key(&self, topic: &str, key: &[u8]) {
        self.fast.forget_key(topic, key);
    }

    /// The windows of all topics that have one.
    fn dedup_windows<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let windows = self.fast.dedup_windows();
        let window = |each: WindowStats| {
            let WindowStats { topic, keys, oldest_ms, cut, bytes_taken } = each;
            KEY_WINDOW.make(py, (topic, keys, oldest_ms, cut, bytes_taken))
        };
        windows.into_iter().map(window).collect()
    }

    /// Entries of a queue with the values of some properties of their records.
    fn queue_properties<'py>(
        &self,
        py: Python<'py>,
        topic: &str,
        queue_id: i32,
        offset: i64,
        count: i64,
        names: Vec<Bound<'py, PyBytes>>,
    ) -> PyResult<Vec<QueuedItem<'py>>> {
        let names: Vec<&[u8]> = names.iter().map(PyBytesMethods::as_bytes).collect();
        let queue = (topic.as_bytes(), queue_id);
        let found = self.fast.store().lock().queued_values(queue, offset, count, &names);
        let item = |each: QueuedValues| {
            let values = each.values.map(|values| {
                let bytes = |value: Option<Vec<u8>>| value.map(|value| PyBytes::new(py, &value));
                PyTuple::new(py, values.into_iter().map(bytes))
            });
            Ok((each.queue_offset, each.physical_offset, each.size, values.transpose()?))
        };
        found.into_iter().map(item).collect()
    }

    /// Store plain records again, one after the other; wakes held pulls.
    fn copy_records<'py>(
        &self,
        py: Python<'py>,
        copies: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (offsets, added, odd_names, odd_keys, moment_below, names_source): CopiesGiven<'py> =
            copies.extract()?;
        let added: Vec<&[u8]> = added.iter().map(PyBytesMethods::as_bytes).collect();
        let rule = CopyRule {
            odd_names: odd_names.iter().map(PyBytesMethods::as_bytes).collect(),
            odd_keys: odd_keys.iter().map(PyBytesMethods::as_bytes).collect(),
            moment_below,
            names_source,
        };
        let done = self.fast.copy_records(&offsets, &added, &rule);
        let topics = done
            .topics
            .into_iter()
            .map(|(topic, count)| (String::from_utf8_lossy(&topic).into_owned(), count));
        COPIED.make(py, (done.count, done.size, topics.collect::<Vec<_>>()))
    }

    /// When the messages of records are due, as their properties say.
    fn moments(&self, offsets: Vec<i64>) -> Vec<Option<i64>> {
        self.fast.moments(&offsets)
    }

    /// Put a consumer group into the table.
    fn set_group(&self, group: &str, fast: bool, slow_broker_id: i64) {
        self.fast.set_group(group, fast, slow_broker_id);
    }

    /// Take a group and its subscriptions out of the tables.
    fn delete_group(&self, group: &str) {
        self.fast.delete_group(group);
    }

    /// What a group's heartbeat said of a topic; None: all tags.
    fn set_subscription(
        &self,
        group: &str,
        topic: &str,
        version: i64,
        tag_codes: Option<Vec<i64>>,
    ) {
        let tag_codes = hashes(tag_codes).map(Into::into);
        self.fast.set_subscription(group, topic, Subscription { version, tag_codes });
    }

    /// Take a subscription out of the table.
    fn delete_subscription(&self, group: &str, topic: &str) {
        self.fast.delete_subscription(group, topic);
    }

    /// Whether the pulls of a group of a topic are slow.
    fn set_slow_pulls(&self, group: &str, topic: &str, slow: bool) {
        self.fast.set_slow_pulls(group, topic, slow);
    }

    /// Whether queues of pops may be lent at all.
    #[getter]
    #[allow(clippy::unused_self)] // a property of the object, as the reference has it
    fn lends_pops(&self) -> bool {
        true
    }

    /// Take over a queue of pops with what is out of it; false: it stays with the caller.
    #[allow(clippy::too_many_arguments)] // the members of a queue
    fn lend_pops(
        &self,
        group: &str,
        topic: &str,
        queue_id: i32,
        committed: i64,
        next_offset: i64,
        space: u32,
        pop_time: i64,
        steady_ms: i64,
        retries: (i64, i64),
        retry_percent: u32,
        broker_name: &str,
        leases: Vec<PlainLease>,
    ) -> bool {
        let new = NewLent {
            group: group.as_bytes(),
            topic: topic.as_bytes(),
            queue_id,
            committed,
            next_offset,
            space,
            pop_time,
            steady_ms,
            retries: retries.into(),
            retry_percent,
            broker: broker_name,
        };
        self.fast.lend_pops(&new, leases.into_iter().map(lease).collect())
    }

    /// What is out of a lent queue; `is_back`: it is lent no longer. None: it is not lent.
    fn lent_pops(
        &self,
        group: &str,
        topic: &str,
        queue_id: i32,
        is_back: bool,
    ) -> Option<PlainLent> {
        let found = self.fast.lent_pops(group.as_bytes(), topic.as_bytes(), queue_id, is_back);
        let (queue, pop_time) = found?;
        let open = queue.leases.iter().filter(|lease| lease.open != 0);
        Some((queue.committed, queue.next_offset, pop_time, open.map(plain_lease).collect()))
    }

    /// (group, topic, queue id, messages) of each lent queue.
    fn lent_counts(&self) -> Vec<LentCount> {
        self.fast.lent_counts()
    }

    /// Deliveries and acknowledgements of lent queues so far, when the first lease ends, or before,
    /// and messages that the broker renews.
    fn lent_changes(&self) -> (u64, i64, u64) {
        self.fast.lent_changes()
    }

    /// The lent queues of which a lease ended by now.
    fn lent_ended(&self, now_ms: i64) -> Vec<LentName> {
        self.fast.lent_ended(now_ms)
    }

    /// The lent queues with messages that the broker renews, of an owner, that end by then.
    fn lent_renewed(&self, owner: Option<&str>, until_ms: i64) -> Vec<LentName> {
        self.fast.lent_renewed(owner, until_ms)
    }

    /// The groups that got messages of a topic, or wait for some; sorted.
    fn readers_of(&self, topic: &str) -> Vec<String> {
        self.fast.readers_of(topic)
    }

    /// Why the store takes no writes, or refused the last one; empty: nothing is wrong.
    #[getter]
    fn trouble(&self) -> String {
        self.fast.store().error().unwrap_or_default()
    }

    /// False: every send takes the slow path.
    fn set_writable(&self, writable: bool) {
        self.fast.set_writable(writable);
    }

    /// Whether offsets are committed that pulls carry; a slave does not.
    fn set_commits(&self, takes_commits: bool) {
        self.fast.set_commits(takes_commits);
    }

    /// For how many milliseconds sends wait for a slave; None: not at all.
    #[pyo3(signature = (timeout_ms))]
    fn set_slave_timeout(&self, timeout_ms: Option<i64>) {
        self.fast.set_slave_timeout(timeout_ms);
    }

    /// How far the log is on a slave, and where a record ends that does not wait for one. True: see
    /// `drain_ready`.
    fn set_replicated(&self, offset: i64, available_below: i64) -> bool {
        self.fast.set_replicated(offset, available_below)
    }

    /// Up to which physical offset queues show their records; None: all. True: see `drain_ready`.
    #[pyo3(signature = (offset))]
    fn set_confirmed(&self, offset: Option<i64>) -> bool {
        self.fast.set_confirmed(offset)
    }

    /// Replace all accounts; None: nothing is checked.
    fn set_accounts(&self, accounts: Option<Vec<Bound<'_, PyTuple>>>) -> PyResult<()> {
        let rules: Option<Vec<AccountRules>> =
            accounts.map(|accounts| accounts.iter().map(account_rules).collect()).transpose()?;
        self.fast.set_accounts(rules.as_deref());
        Ok(())
    }

    /// Take folders of the commit log out of the rotation of new files, and let in the others.
    fn set_full_log_paths(&self, paths: Vec<PathBuf>) {
        self.fast.store().lock().set_full_log_paths(&paths);
    }

    /// `maxMessageSize` from now on.
    fn set_max_message_size(&self, size: usize) {
        self.fast.set_max_message_size(size);
    }

    /// Append one record, its queue entry and its index entries; wakes held pulls.
    fn append<'py>(
        &self,
        py: Python<'py>,
        record: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let ((topic, queue_id), record) = records::record(record)?;
        let values = match self.fast.append(topic, queue_id, &record) {
            Ok(done) => {
                (0, done.physical_offset, done.queue_offset, done.size, done.store_timestamp)
            }
            Err(status) => (status as i32, 0, 0, 0, 0),
        };
        APPENDED.make(py, values)
    }

    /// Raw bytes of the log from an offset on, of one file; empty outside.
    fn read_log<'py>(&self, py: Python<'py>, offset: i64, max_bytes: usize) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.fast.store().lock().raw_log(offset, max_bytes))
    }

    /// Append bytes of a master's log; the end of the last whole record. Wakes held pulls.
    fn append_log(&self, offset: i64, data: &Bound<'_, PyAny>) -> PyResult<i64> {
        let appended = with_bytes(data, None, |bytes| self.fast.append_log(offset, bytes))?;
        appended.map_err(|error| to_python(&error))
    }

    /// Take over a connection that brings a master's log, by a copy of its descriptor.
    fn read_master(
        &self,
        descriptor: i32,
        stream_position: &Bound<'_, PyTuple>,
        frame_bytes: usize,
        read_bytes: usize,
    ) -> PyResult<MasterStream> {
        MasterStream::new(
            Arc::clone(&self.fast),
            descriptor,
            stream_position,
            frame_bytes,
            read_bytes,
        )
    }

    /// Append the items of a batch as records that follow each other, or none.
    fn append_batch<'py>(
        &self,
        py: Python<'py>,
        batch: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let ((topic, queue_id), batch, items) = records::batch(batch)?;
        let items = items.of_engine();
        let mut offsets = Vec::new();
        let values = match self.fast.append_batch(topic, queue_id, &batch, &items, &mut offsets) {
            Ok(done) => (0, offsets, done.queue_offset, done.end_offset, done.store_timestamp),
            Err(status) => (status as i32, Vec::new(), 0, 0, 0),
        };
        BATCH_APPENDED.make(py, values)
    }

    /// getMessage of RocketMQ, with its limits and its next offsets.
    #[pyo3(signature = (topic, queue_id, offset, max_count, tag_codes, group=None, bits=None))]
    #[allow(clippy::too_many_arguments)] // the fields of a pull
    fn read<'py>(
        &self,
        py: Python<'py>,
        topic: &str,
        queue_id: i32,
        offset: i64,
        max_count: i32,
        tag_codes: Option<Vec<i64>>,
        group: Option<&str>,
        bits: Option<(u32, i64, Vec<u32>)>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let codes = hashes(tag_codes);
        let mut records = Vec::new();
        let bits = bits.as_ref().map(|(bits, born_ms, positions)| BitFilter {
            bits: *bits,
            born_ms: *born_ms,
            positions,
        });
        let filter = Filter { tag_codes: codes.as_deref(), bits };
        let found = self.fast.read(group, topic, queue_id, offset, max_count, filter, &mut records);
        let values = (
            found.status as i32,
            found.next_offset,
            found.min_offset,
            found.max_offset,
            found.suggest_slave,
            found.count,
            PyBytes::new(py, &records),
        );
        READ.make(py, values)
    }

    /// The record that starts at a physical offset; None when none does.
    fn lookup<'py>(&self, py: Python<'py>, physical_offset: i64) -> Option<Bound<'py, PyBytes>> {
        let mut record = Vec::new();
        let is_there = self.fast.store().lock().lookup_into(physical_offset, &mut record);
        is_there.then(|| PyBytes::new(py, &record))
    }

    /// (index last update timestamp, its physical offset, raw records) for topic#key.
    fn query_key<'py>(
        &self,
        py: Python<'py>,
        topic: &str,
        key: &str,
        max_count: usize,
        begin_ms: i64,
        end_ms: i64,
    ) -> (i64, i64, Bound<'py, PyBytes>) {
        let (found, records) = py.detach(|| {
            let (topic, key) = (topic.as_bytes(), key.as_bytes());
            let mut records = Vec::new();
            let mut core = self.fast.store().lock();
            let found = core.query_key_into(topic, key, max_count, begin_ms, end_ms, &mut records);
            (found, records)
        });
        (found.0, found.1, PyBytes::new(py, &records))
    }

    /// (min offset, max offset) of a queue; (0, 0) when it does not exist.
    fn queue_bounds(&self, topic: &str, queue_id: i32) -> (i64, i64) {
        self.fast.store().lock().queue_bounds(topic.as_bytes(), queue_id)
    }

    /// Every consume queue.
    fn queues<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let queues = self.fast.store().lock().queues();
        queues
            .into_iter()
            .map(|queue| {
                let values = (queue.topic, queue.queue_id, queue.min_offset, queue.max_offset);
                QUEUE_BOUNDS.make(py, values)
            })
            .collect()
    }

    /// getOffsetInQueueByTime: exact match, else the nearest; 0 when there is no queue.
    fn offset_by_time(&self, topic: &str, queue_id: i32, timestamp_ms: i64) -> i64 {
        self.fast.store().lock().offset_by_time(topic.as_bytes(), queue_id, timestamp_ms)
    }

    /// Store timestamp of the message at a queue offset; -1 when there is none.
    fn store_time(&self, topic: &str, queue_id: i32, offset: i64) -> i64 {
        self.fast.store().lock().store_time(topic.as_bytes(), queue_id, offset)
    }

    /// (physical offset, size, tags code) of a queue entry; None when there is none.
    fn queue_entry(&self, topic: &str, queue_id: i32, offset: i64) -> Option<(i64, i32, i64)> {
        self.fast.store().lock().queue_entry(topic.as_bytes(), queue_id, offset)
    }

    /// (tags code, store time, bit map) of the unit beside a queue entry; None when it has none.
    fn queue_unit<'py>(
        &self,
        py: Python<'py>,
        topic: &str,
        queue_id: i32,
        offset: i64,
    ) -> Option<(i64, i64, Bound<'py, PyBytes>)> {
        let unit = self.fast.store().lock().queue_unit(topic.as_bytes(), queue_id, offset)?;
        Some((unit.tags_code, unit.store_time, PyBytes::new(py, &unit.bit_map)))
    }

    /// Delete a topic's consume queue files; how many queues there were.
    fn delete_queues(&self, topic: &str) -> usize {
        self.fast.store().lock().delete_queues(topic.as_bytes())
    }

    /// Delete one queue and its files; whether it had any.
    fn delete_queue(&self, topic: &str, queue_id: i32) -> bool {
        self.fast.store().lock().delete_queue(topic.as_bytes(), queue_id)
    }

    /// (path, start, size) of each commit log file, oldest first.
    fn log_files(&self) -> Vec<(String, i64, i64)> {
        let files = self.fast.store().lock().log_files();
        files.into_iter().map(|file| (text(&file.path), file.start, file.size)).collect()
    }

    /// Take the oldest commit log file out of the store; its path, None when it is the only one.
    fn drop_log_file(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| self.fast.store().drop_log_file()).map(|path| text(&path))
    }

    /// Delete up to `most` expired files of a queue, and correct its min offset; how many.
    fn expire_queue(&self, topic: &str, queue_id: i32, most: usize) -> PyResult<usize> {
        let expired = self.fast.store().lock().expire_queue(topic.as_bytes(), queue_id, most);
        expired.map_err(|error| to_python(&error))
    }

    /// Take the expired index files out of the store; their paths.
    fn expire_index(&self, py: Python<'_>) -> Vec<String> {
        let paths = py.detach(|| self.fast.store().expire_index());
        paths.iter().map(|path| text(path)).collect()
    }

    /// Physical offset after the record of a queue's last entry; -1 when there is none.
    fn queue_end(&self, topic: &str, queue_id: i32) -> i64 {
        self.fast.store().lock().queue_end(topic.as_bytes(), queue_id)
    }

    /// First physical offset of the log.
    #[getter]
    fn min_physical_offset(&self) -> i64 {
        self.fast.store().lock().min_physical_offset()
    }

    /// Buffers of the transient store pool that are free; -1 without one.
    #[getter]
    fn transient_buffers(&self) -> i64 {
        let free = self.fast.store().free_buffers();
        free.map_or(-1, |count| i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// Physical offset after the last record that can be read.
    #[getter]
    fn max_physical_offset(&self) -> i64 {
        self.fast.store().lock().max_physical_offset()
    }

    /// Physical offset up to which the log is on disk.
    #[getter]
    fn flushed_offset(&self) -> i64 {
        self.fast.store().flushed_offset()
    }

    /// Whether a flush failed: `flushed_offset` moves no more.
    #[getter]
    fn has_failed(&self) -> bool {
        self.fast.store().has_failed()
    }

    /// Ask the flush thread to reach an offset; `notify_fd` tells when it did.
    fn request_flush(&self, physical_offset: i64) {
        self.fast.store().request_flush(physical_offset);
    }

    /// Counters since open.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.fast.store().lock().stats();
        let values = [
            ("put_count", stats.put_count),
            ("put_bytes", stats.put_bytes),
            ("get_found", stats.get_found),
            ("get_miss", stats.get_miss),
            ("get_count", stats.get_count),
            ("get_bytes", stats.get_bytes),
            ("get_time_max_ms", stats.get_time_max_ms),
            ("flush_count", stats.flush_count),
            ("held_pulls", self.fast.held_pulls() as u64),
            ("index_pending", stats.index_pending),
            ("dispatch_behind_bytes", stats.dispatch_behind_bytes),
            ("file_wait_ms", stats.file_wait_ms),
            ("uncommitted_bytes", stats.uncommitted_bytes),
        ];
        counters(py, &values)
    }

    /// (milliseconds, fast sends that took so long) since the last call.
    fn drain_put_times(&self) -> Vec<(i64, u64)> {
        self.fast.drain_put_times()
    }

    /// (flushes of the log by `LATENCY_ENDS_MS`, the sum of their times in microseconds) since
    /// open.
    fn flush_times(&self) -> (Vec<u64>, u64) {
        self.fast.store().flush_times()
    }

    /// The same of reads of groups, from the store time of their first message on.
    fn delivery_times(&self) -> (Vec<u64>, u64) {
        self.fast.store().delivery_times()
    }

    /// (path, code, counts by `RPC_ENDS_MS`, the sum of their times in microseconds) of the calls of
    /// gRPC that were answered here.
    fn call_times(&self) -> Vec<CallCounts> {
        self.fast.call_times()
    }

    /// (topic, messages put, bytes put) since open.
    fn topic_stats(&self) -> Vec<(String, u64, u64)> {
        self.fast.store().lock().topic_stats()
    }

    /// (group, topic, queue id, reads, messages, bytes, milliseconds) since open.
    fn group_stats(&self) -> Vec<GroupStats> {
        self.fast.group_stats()
    }

    /// (group, topic, queue id, bytes behind the end of the log) of each group's last reads.
    fn lag(&self) -> Vec<Lag> {
        self.fast.lag()
    }

    /// Hold a pull of the slow path; False: the table is full, answer it now.
    #[allow(clippy::too_many_arguments)] // the fields of a pull
    fn hold(
        &self,
        connection_id: u64,
        serialize_type: u8,
        opaque: i32,
        group: &str,
        topic: &str,
        queue_id: i32,
        offset: i64,
        max_count: i32,
        tag_codes: Option<Vec<i64>>,
        deadline_ms: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let encoding = Encoding::of(serialize_type).ok_or_else(|| {
            PyValueError::new_err(format!("serialize type {serialize_type} is not 0 or 1"))
        })?;
        let codes = hashes(tag_codes);
        Ok(self.fast.hold(&NewHold {
            connection: connection_id,
            encoding,
            opaque,
            group: group.as_bytes(),
            topic: topic.as_bytes(),
            queue_id,
            offset,
            max_count,
            tag_codes: codes.as_deref(),
            deadline_ms: deadline(deadline_ms)?,
        }))
    }

    /// Tell, by `drain_arrived`, when a queue has a record at an offset.
    #[allow(clippy::too_many_arguments)] // the fields of a wait
    fn wait_for_offset(
        &self,
        wait_id: u64,
        group: &str,
        topic: &str,
        queue_id: i32,
        offset: i64,
        deadline_ms: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        Ok(self.fast.wait_for_offset(&NewWait {
            id: wait_id,
            group: group.as_bytes(),
            topic: topic.as_bytes(),
            queue_id,
            offset,
            deadline_ms: deadline(deadline_ms)?,
        }))
    }

    /// Forget a wait.
    fn cancel_wait(&self, wait_id: u64) {
        self.fast.cancel_wait(wait_id);
    }

    /// The waits that are over, some of them at a time.
    fn drain_arrived(&self) -> Vec<u64> {
        self.fast.drain_arrived()
    }

    /// Hold no more pulls: the next tick answers those that are held.
    fn stop_holding(&self) {
        self.fast.stop_holding();
    }

    /// Expire held pulls (answer 19) and overdue send answers (answers 10 and 12). True: see
    /// `drain_ready`.
    fn tick(&self, now_ms: i64) -> bool {
        self.fast.tick(now_ms)
    }

    /// (connection id, frames) of answers that became ready elsewhere than in their own feed.
    fn drain_ready<'py>(&self, py: Python<'py>) -> Vec<(u64, Bound<'py, PyBytes>)> {
        let ready = self.fast.drain_ready();
        ready.into_iter().map(|(id, frames)| (id, PyBytes::new(py, &frames))).collect()
    }

    /// (group, topic, queue id, offset) that fast pulls committed since the last call.
    fn drain_commits(&self) -> Vec<Commit> {
        self.fast.drain_commits()
    }
}
