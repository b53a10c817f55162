-- draw
-- The next sequence of a source. Its row stays locked to the commit: a lower one never appears after a higher one.
INSERT INTO perdure_outbox_sequences (event_source, last_sequence) VALUES (:event_source, 1)
{on_conflict_do_update(event_source)} last_sequence = perdure_outbox_sequences.last_sequence + 1
RETURNING last_sequence

-- draw [mysql]
-- Differs because MySQL has no RETURNING.
INSERT INTO perdure_outbox_sequences (event_source, last_sequence) VALUES (:event_source, 1)
{on_conflict_do_update(event_source)} last_sequence = last_sequence + 1;
SELECT last_sequence FROM perdure_outbox_sequences WHERE event_source = :event_source

-- add
-- A new event at the end of its source; nothing if the id is taken.
INSERT INTO outbox_events
       (event_id, event_type, event_source, data_type, event_data, event_data_binary, content_type, created_at, status,
        retry_count, sequence, updated_at)
VALUES (:event_id, :event_type, :event_source, :data_type, :event_data, :event_data_binary, :content_type,
        COALESCE(:created_at, {now}), 'pending', 0, :sequence, {now})
{on_conflict_do_nothing(event_id)}

-- content
-- What distinguishes an event from another under the same id.
SELECT event_type, event_source, data_type, event_data, event_data_binary, content_type FROM outbox_events
 WHERE event_id = :event_id

-- ready_at
-- From when on a source has something to send.
SELECT ready_at FROM perdure_outbox_sources WHERE event_source = :event_source

-- enter
-- A source's first event.
INSERT INTO perdure_outbox_sources (event_source, ready_at) VALUES (:event_source, {now})
{on_conflict_do_nothing(event_source)}

-- wake
-- A source is ready at that time, or now.
UPDATE perdure_outbox_sources SET ready_at = COALESCE(:ready_at, {now}) WHERE event_source = :event_source

-- sleep
-- A source has nothing to send.
UPDATE perdure_outbox_sources SET ready_at = NULL WHERE event_source = :event_source

-- quiet
-- Which of these sources nobody is adding to; their sequences are locked, so nobody can.
SELECT event_source FROM perdure_outbox_sequences WHERE event_source {any(:sources)} ORDER BY event_source {skip_locked}

-- waiting
-- Whether any source is ready.
SELECT event_source FROM perdure_outbox_sources WHERE ready_at <= {now} LIMIT 1

-- ready
-- Sources with something to send that no other relay is looking at, the longest waiting first.
SELECT event_source FROM perdure_outbox_sources WHERE ready_at <= {now}
 ORDER BY ready_at, {ordinal(event_source)} LIMIT :limit {skip_locked}

-- claimed
-- Events of a source that are claimed; once it is ready again, by relays that are gone.
SELECT event_id FROM outbox_events
 WHERE event_source = :event_source AND status = 'processing' AND sequence > :after

-- hand_back
-- Claims end without a result.
UPDATE outbox_events SET status = 'pending', claimed_by = NULL, claim_expires_at = NULL, updated_at = {now}
 WHERE event_id {any(:ids)}

-- first
-- A source's next events in order, each with whether it still backs off. Their time of change is now: they are claimed.
SELECT event_id, event_type, event_source, event_data, event_data_binary, data_type, content_type, status, retry_count,
       last_error, published_at, created_at, sequence, {now}, CASE WHEN next_attempt_at > {now} THEN 1 ELSE 0 END
  FROM outbox_events WHERE event_source = :event_source AND status = 'pending' AND sequence > 0
 ORDER BY sequence LIMIT :limit

-- claim
-- Events go to one relay for a time.
UPDATE outbox_events
   SET status = 'processing', claimed_by = :relay_id, claim_expires_at = {after(:lease_sec)}, updated_at = :updated_at
 WHERE event_id {any(:ids)}

-- postpone
-- Nobody else gets a source's events while some of them are claimed.
UPDATE perdure_outbox_sources SET ready_at = {after(:lease_sec)} WHERE event_source {any(:sources)}

-- hold
-- Lock an event's source: whatever relays do to one source's events, they do one after the other.
SELECT event_source FROM perdure_outbox_sources
 WHERE event_source = (SELECT event_source FROM outbox_events WHERE event_id = :event_id) {for_update}

-- state
-- How an own event stands.
SELECT event_source, sequence, status, retry_count, claimed_by FROM outbox_events
 WHERE event_id = :event_id AND sequence IS NOT NULL

-- sent
-- An event was published.
UPDATE outbox_events
   SET status = 'published', published_at = {now}, claimed_by = NULL, claim_expires_at = NULL, next_attempt_at = NULL,
       updated_at = {now}
 WHERE event_id = :event_id

-- back_off
-- An attempt failed; the next one is made later.
UPDATE outbox_events
   SET status = 'pending', retry_count = retry_count + 1, last_error = COALESCE(:error, last_error),
       next_attempt_at = {after(:back_off_sec)}, claimed_by = NULL, claim_expires_at = NULL, updated_at = {now}
 WHERE event_id = :event_id

-- park
-- No more attempts. Edda fetches `failed` again, so that is stored as `invalid`.
UPDATE outbox_events
   SET status = 'invalid', last_error = COALESCE(:error, last_error), claimed_by = NULL, claim_expires_at = NULL,
       next_attempt_at = NULL, updated_at = {now}
 WHERE event_id = :event_id

-- ahead
-- The first claimed and the first waiting event of a source.
SELECT * FROM (SELECT status, next_attempt_at FROM outbox_events
                WHERE event_source = :event_source AND status = 'processing' AND sequence > 0 LIMIT 1) claimed
UNION ALL
SELECT * FROM (SELECT status, next_attempt_at FROM outbox_events
                WHERE event_source = :event_source AND status = 'pending' AND sequence > 0
                ORDER BY sequence LIMIT 1) waiting

-- requeue
-- A parked event starts again at the end of its source.
UPDATE outbox_events
   SET status = 'pending', sequence = :sequence, retry_count = 0, last_error = NULL, updated_at = {now}
 WHERE event_id = :event_id AND status = 'invalid'

-- position
-- Where an event stands in the order of the lists.
SELECT created_at FROM outbox_events WHERE event_id = :event_id

-- list
-- Own events, oldest first.
SELECT event_id, event_type, event_source, event_data, event_data_binary, data_type, content_type, status, retry_count,
       last_error, published_at, created_at, sequence, COALESCE(updated_at, published_at, created_at)
  FROM outbox_events
 WHERE sequence IS NOT NULL AND created_at >= :created_at AND (created_at > :created_at OR {ordinal(event_id)} > :after)
 ORDER BY created_at, {ordinal(event_id)} LIMIT :limit

-- list_status
-- The same in one state, by the index of the states.
SELECT event_id, event_type, event_source, event_data, event_data_binary, data_type, content_type, status, retry_count,
       last_error, published_at, created_at, sequence, COALESCE(updated_at, published_at, created_at)
  FROM outbox_events {index(idx_outbox_status)}
 WHERE status = :status AND sequence IS NOT NULL
   AND created_at >= :created_at AND (created_at > :created_at OR {ordinal(event_id)} > :after)
 ORDER BY created_at, {ordinal(event_id)} LIMIT :limit

-- old
-- Own events published long ago. The state is not asked for: SQLite would take its index, and read them all.
SELECT event_id, event_source FROM outbox_events
 WHERE published_at <= {ago(:age_sec)} AND sequence IS NOT NULL
 ORDER BY published_at LIMIT :limit {skip_locked}

-- delete
-- Remove events.
DELETE FROM outbox_events WHERE event_id {any(:ids)}

-- unused
-- Which of these sources have no event left; by the index, where NOT EXISTS would read the whole table.
SELECT event_source FROM perdure_outbox_sequences s
 WHERE event_source {any(:sources)}
   AND (SELECT e.status FROM outbox_events e WHERE e.event_source = s.event_source
         ORDER BY e.status, e.sequence LIMIT 1) IS NULL

-- forget
-- Remove sources.
DELETE FROM perdure_outbox_sources WHERE event_source {any(:sources)};
DELETE FROM perdure_outbox_sequences WHERE event_source {any(:sources)}
