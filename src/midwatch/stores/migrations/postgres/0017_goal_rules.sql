-- rules of a goal, and rules of answers about a tool by its name

ALTER TABLE goals ADD COLUMN approvals TEXT;
ALTER TABLE rules ADD COLUMN tool TEXT;
