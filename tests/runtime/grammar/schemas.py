"""Schemas of the kinds that people hold models to, each with a request for a document. All documents are bounded."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def text(longest: int = 24, **more: Any) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": longest, **more}


def whole(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def among(*values: Any) -> Schema:
    return {"enum": list(values)}


def pattern(expression: str) -> Schema:
    return {"type": "string", "pattern": expression}


def listed(items: Schema, most: int = 3, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def record(required: dict[str, Schema], optional: dict[str, Schema] | None = None, **more: Any) -> Schema:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


def tool(name: str, arguments: Schema) -> Schema:
    return record({"name": {"const": name}, "arguments": arguments})


DAY = {"type": "string", "format": "date"}
FLAG = {"type": "boolean"}
COUNTRY = pattern("^[A-Z]{2}$")
AIRPORT = pattern("^[A-Z]{3}$")
MONEY = pattern(r"^[0-9]{1,6}\.[0-9]{2}$")
LATITUDE = whole(-90, 90)
POINT = {"type": "array", "prefixItems": [whole(-180, 180), LATITUDE], "items": False, "minItems": 2}
VERSION = pattern(r"^(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})$")
PASSENGER = record({"first_name": text(16), "last_name": text(16), "dob": DAY})
LEG = record({"flight_number": pattern("^[A-Z]{2,3}[0-9]{3}$"), "date": DAY})

SCHEMAS: dict[str, tuple[str, Schema]] = {
    "package manifest": (
        "Write the manifest of a small JavaScript package.",
        record(
            {"name": pattern("^[a-z][a-z0-9-]{0,20}$"), "version": VERSION, "license": among("MIT", "Apache-2.0")},
            {
                "private": FLAG,
                "keywords": listed(text(12)),
                "dependencies": {
                    "type": "object",
                    "patternProperties": {"^[a-z][a-z-]{1,12}$": pattern(r"^\^[0-9]{1,2}\.[0-9]{1,2}$")},
                    "additionalProperties": False,
                    "maxProperties": 3,
                },
            },
        ),
    ),
    "HTTP parameter": (
        "Describe a query parameter of a web API.",
        record(
            {"name": text(16), "in": among("query", "header", "path", "cookie"), "required": FLAG},
            {
                "description": text(60),
                "schema": {
                    "oneOf": [
                        record({"type": {"const": "string"}}, {"maxLength": whole(1, 255)}),
                        record({"type": {"const": "integer"}}, {"minimum": whole(0, 10), "maximum": whole(11, 99)}),
                        record({"type": {"const": "boolean"}}),
                    ]
                },
            },
        ),
    ),
    "geometry": (
        "Write a GeoJSON geometry.",
        {
            "oneOf": [
                record({"type": {"const": "Point"}, "coordinates": {"$ref": "#/$defs/position"}}),
                record(
                    {
                        "type": {"const": "LineString"},
                        "coordinates": listed({"$ref": "#/$defs/position"}, most=4, least=2),
                    }
                ),
                record(
                    {
                        "type": {"const": "Polygon"},
                        "coordinates": listed(listed({"$ref": "#/$defs/position"}, most=5, least=4), most=1, least=1),
                    }
                ),
            ],
            "$defs": {"position": POINT},
        },
    ),
    "feature": (
        "Write a GeoJSON feature of a city.",
        record(
            {
                "type": {"const": "Feature"},
                "geometry": record({"type": {"const": "Point"}, "coordinates": POINT}),
                "properties": record({"name": text(), "population": whole(0, 40_000_000)}, {"capital": FLAG}),
            }
        ),
    ),
    "invoice": (
        "Write an invoice for office supplies.",
        record(
            {
                "number": pattern("^INV-[0-9]{4}-[0-9]{5}$"),
                "issued": DAY,
                "currency": among("EUR", "USD", "GBP", "JPY"),
                "lines": listed(
                    record({"description": text(), "quantity": whole(1, 99), "unit_price": MONEY}), most=3, least=1
                ),
                "total": MONEY,
            },
            {"due": DAY, "note": {"anyOf": [text(40), {"type": "null"}]}},
        ),
    ),
    "book a flight": (
        "Call book_reservation for a trip from Boston to Denver.",
        tool(
            "book_reservation",
            record(
                {
                    "user_id": pattern("^[a-z]{2,10}_[a-z]{2,10}_[0-9]{4}$"),
                    "origin": AIRPORT,
                    "destination": AIRPORT,
                    "flight_type": among("one_way", "round_trip"),
                    "cabin": among("basic_economy", "economy", "business"),
                    "flights": listed(LEG, most=2, least=1),
                    "passengers": listed(PASSENGER, most=2, least=1),
                    "total_baggages": whole(0, 9),
                    "insurance": among("yes", "no"),
                }
            ),
        ),
    ),
    "search flights": (
        "Call search_direct_flight from New York to Seattle.",
        tool("search_direct_flight", record({"origin": AIRPORT, "destination": AIRPORT, "date": DAY})),
    ),
    "change baggage": (
        "Call update_reservation_baggages.",
        tool(
            "update_reservation_baggages",
            record(
                {
                    "reservation_id": pattern("^[A-Z0-9]{6}$"),
                    "total_baggages": whole(0, 12),
                    "nonfree_baggages": whole(0, 12),
                    "payment_id": pattern("^(credit_card|gift_card|certificate)_[0-9]{7}$"),
                }
            ),
        ),
    ),
    "one of several tools": (
        "Answer the user or call a tool.",
        {
            "anyOf": [
                tool("get_user_details", record({"user_id": text(20)})),
                tool("calculate", record({"expression": pattern(r"^[0-9]{1,4} [*/+-] [0-9]{1,4}$")})),
                tool("transfer_to_human_agents", record({"summary": text(80)})),
                record({"answer": text(120)}),
            ]
        },
    ),
    "person": (
        "Write a person's record.",
        record(
            {"name": text(), "age": whole(0, 120), "email": pattern(r"^[a-z.]{1,16}@[a-z]{2,12}\.(com|org)$")},
            {"nicknames": listed(text(12), most=2), "married": {"type": ["boolean", "null"]}},
        ),
    ),
    "address": (
        "Write a postal address in Germany.",
        record(
            {"street": text(30), "city": text(20), "postal_code": pattern("^[0-9]{5}$"), "country": COUNTRY},
            {"state": text(20)},
        ),
    ),
    "calendar event": (
        "Write a calendar event for a team meeting.",
        record(
            {
                "summary": text(40),
                "start": {"type": "string", "format": "date-time"},
                "end": {"type": "string", "format": "date-time"},
            },
            {
                "attendees": listed(record({"name": text(16), "status": among("accepted", "declined", "tentative")})),
                "recurrence": record({"frequency": among("daily", "weekly", "monthly"), "interval": whole(1, 12)}),
            },
        ),
    ),
    "extracted entities": (
        "List the people and places in: Marie Curie worked in Paris with Pierre.",
        record(
            {
                "entities": listed(
                    record(
                        {"text": text(20), "kind": among("person", "place", "organisation"), "start": whole(0, 500)}
                    ),
                    most=4,
                    least=1,
                )
            }
        ),
    ),
    "sentiment": (
        "Rate this review: the food was fine, the waiter was not.",
        record(
            {"label": among("positive", "neutral", "negative"), "confidence": among(0, 0.25, 0.5, 0.75, 1)},
            {"reasons": listed(text(40), most=2)},
        ),
    ),
    "recipe": (
        "Write a recipe for pancakes.",
        record(
            {
                "title": text(30),
                "servings": whole(1, 12),
                "ingredients": listed(
                    record({"item": text(16), "amount": whole(1, 1000), "unit": among("g", "ml", "piece")}),
                    most=4,
                    least=2,
                ),
                "steps": listed(text(60), most=3, least=1),
            }
        ),
    ),
    "file tree": (
        "Describe a small folder.",
        {
            "$ref": "#/$defs/folder",
            "$defs": {
                "file": record({"kind": {"const": "file"}, "name": text(16), "bytes": whole(0, 999_999)}),
                "leaf": record(
                    {"kind": {"const": "folder"}, "name": text(16), "entries": listed({"$ref": "#/$defs/file"}, 2)}
                ),
                "folder": record(
                    {
                        "kind": {"const": "folder"},
                        "name": text(16),
                        "entries": listed({"anyOf": [{"$ref": "#/$defs/file"}, {"$ref": "#/$defs/leaf"}]}, 3),
                    }
                ),
            },
        },
    ),
    "log entry": (
        "Write a log entry of a web server.",
        record(
            {
                "time": {"type": "string", "format": "date-time"},
                "level": among("debug", "info", "warning", "error"),
                "message": text(60),
                "client": {"type": "string", "format": "ipv4"},
            },
            {"status": whole(100, 599), "trace_id": {"type": "string", "format": "uuid"}},
        ),
    ),
    "service configuration": (
        "Write the configuration of a web service.",
        record(
            {"image": pattern("^[a-z]{2,10}/[a-z]{2,12}:[0-9]{1,2}$"), "replicas": whole(1, 20)},
            {
                "ports": listed(record({"port": whole(1, 65535), "protocol": among("TCP", "UDP")}), most=2),
                "env": {
                    "type": "object",
                    "propertyNames": {"pattern": "^[A-Z_]{1,12}$"},
                    "additionalProperties": text(16),
                    "maxProperties": 3,
                },
                "resources": record({"cpu": pattern("^[1-9][0-9]{0,3}m$"), "memory": pattern("^[1-9][0-9]{0,3}Mi$")}),
            },
        ),
    ),
    "database query": (
        "Find the ten newest orders.",
        record(
            {"table": among("orders", "customers", "products"), "columns": listed(text(12), most=3, least=1)},
            {
                "where": listed(
                    record(
                        {"column": text(12), "operator": among("=", "<", ">", "like")}
                        | {"value": {"anyOf": [text(12), whole(-1000, 1000), {"type": "null"}]}}
                    ),
                    most=2,
                ),
                "order_by": record({"column": text(12), "direction": among("asc", "desc")}),
                "limit": whole(1, 1000),
            },
        ),
    ),
    "product": (
        "Write a product for a web shop.",
        record(
            {
                "sku": pattern("^[A-Z]{3}-[0-9]{4}$"),
                "title": text(40),
                "price": record({"amount": MONEY, "currency": AIRPORT}),
            },
            {
                "tags": listed(text(12)),
                "in_stock": FLAG,
                "rating": {"type": ["integer", "null"], "minimum": 1, "maximum": 5},
            },
        ),
    ),
    "inherited": (
        "Describe an electric car.",
        {
            "allOf": [
                {"$ref": "#/$defs/vehicle"},
                {"type": "object", "properties": {"battery_kwh": whole(10, 200)}, "required": ["battery_kwh"]},
            ],
            "$defs": {
                "vehicle": {
                    "type": "object",
                    "properties": {"maker": text(16), "wheels": among(2, 3, 4), "colour": text(12)},
                    "required": ["maker", "wheels"],
                }
            },
        },
    ),
    "quiz": (
        "Write a quiz question about the sea.",
        record(
            {"question": text(80), "options": listed(text(24), most=4, least=4), "answer": whole(0, 3)},
            {"explanation": text(80)},
        ),
    ),
    "plan of steps": (
        "Plan how to fix a failing test.",
        record(
            {
                "goal": text(60),
                "steps": listed(
                    record({"id": whole(1, 9), "action": among("read", "edit", "run"), "target": text(24)})
                    | {"required": ["id", "action"]},
                    most=4,
                    least=1,
                ),
            }
        ),
    ),
    "key and value pairs": (
        "Give the boiling points of three liquids in degrees Celsius.",
        {
            "type": "object",
            "additionalProperties": whole(-200, 400),
            "minProperties": 1,
            "maxProperties": 3,
            "propertyNames": text(16),
        },
    ),
    "row of a table": (
        "Write a row: name, age, city, member.",
        {
            "type": "array",
            "prefixItems": [text(16), whole(0, 120), text(16), FLAG],
            "items": False,
            "minItems": 4,
        },
    ),
}
