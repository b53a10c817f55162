-- use
-- Record that a wait of a channel matches by a set of paths; messages after `after_id` need keys for it.
INSERT INTO perdure_match_paths (channel, paths_key, paths, from_id, to_id)
VALUES (:channel, :paths_key, :paths, :after_id, :after_id) {on_conflict_do_nothing(channel, paths_key)}

-- range -> from_id, to_id
-- Return which messages of a channel have keys for a set of paths.
SELECT from_id, to_id FROM perdure_match_paths WHERE channel = :channel AND paths_key = :paths_key

-- found -> message_id
-- Return the next message for a subscriber that has a key.
SELECT {next_match(w)} FROM channel_subscriptions s, (SELECT :match_key AS match_key) w
 WHERE s.instance_id = :instance_id AND s.channel = :channel

-- may_find -> message_id, complete
-- Return the same, and whether there are messages without a key.
SELECT {next_match(w)}, (SELECT CASE WHEN p.from_id <= {cursor} AND p.to_id >= {newest(s)} THEN 1 ELSE 0 END
                           FROM perdure_match_paths p WHERE p.channel = :channel AND p.paths_key = :paths_key)
  FROM channel_subscriptions s, (SELECT :match_key AS match_key) w
 WHERE s.instance_id = :instance_id AND s.channel = :channel

-- sets -> channel, paths_key, paths, to_id, newest_id, swept_id
-- Return the sets of paths that these channels match by, where their keys end, and where their messages end.
SELECT p.channel, p.paths_key, p.paths, p.to_id, {newest(p)}, q.swept_id
  FROM perdure_match_paths p JOIN perdure_channels q ON q.channel = p.channel WHERE p.channel {any(:channels)}

-- messages -> id, data
-- Return the messages of a channel between two ids, in order; NULL for data that is not JSON.
SELECT m.id, m.data FROM channel_messages m {index(idx_channel_messages_order)}
 WHERE m.channel = :channel AND m.id > :after_id AND m.id <= :last_id ORDER BY m.channel, m.id LIMIT :limit

-- add_many
-- Insert the keys of messages.
INSERT INTO perdure_message_matches (match_key, message_id, channel)
SELECT * FROM unnest(:keys::text[], :messages::bigint[], :channels::text[]) ON CONFLICT DO NOTHING

-- add_many [sqlite]
-- Differs because SQLite runs a statement for each item.
INSERT INTO perdure_message_matches (match_key, message_id, channel) VALUES (:match_key, :message_id, :channel)
{on_conflict_do_nothing(match_key, message_id)}

-- add_many [mysql]
-- Differs because a list is written out.
INSERT IGNORE INTO perdure_message_matches (match_key, message_id, channel) VALUES :rows

-- reach
-- Record up to which message the keys of a set of paths exist.
UPDATE perdure_match_paths SET from_id = :from_id, to_id = :to_id WHERE channel = :channel AND paths_key = :paths_key

-- back
-- Record that a message of a channel and those after it have no keys yet.
UPDATE perdure_match_paths SET from_id = CASE WHEN from_id < :message_id THEN from_id ELSE :message_id - 1 END,
       to_id = :message_id - 1
 WHERE channel = :channel AND to_id >= :message_id;
UPDATE perdure_channels SET swept_id = :message_id - 1 WHERE channel = :channel AND swept_id >= :message_id

-- fresh -> message_id, match_key
-- Return the keys of a channel's messages that no sweep is done with, in the order of the messages.
SELECT message_id, match_key FROM perdure_message_matches {index(idx_perdure_message_matches_channel)}
 WHERE channel = :channel AND message_id > :after_id ORDER BY channel, message_id LIMIT :limit

-- swept
-- Record that a sweep is done with the messages of a channel up to one.
UPDATE perdure_channels SET swept_id = :message_id WHERE channel = :channel AND swept_id < :message_id
